"""Building the image: again after a change, with a user's code, in another image, behind a proxy and with an index of one's own."""

import base64
import hashlib
import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from launcher import images
from launcher.docker_cli import docker
from launcher.image_build.context import FILES, sources
from tests.e2e.docker.conftest import ROOT, Build, Built
from tests.e2e.docker.running import cleaned, free_port, launch, unique

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]


@pytest.fixture
def tag() -> Iterator[str]:
    """Return a name for an image of the test's own, which is removed afterwards."""
    name = f"tf-launcher/test:{uuid.uuid4().hex[:12]}"
    yield name
    if docker("image", "ls", "--quiet", name).strip():
        docker("image", "rm", "--force", name)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a copy of the project, as far as building is concerned, that a test may change."""
    copy = tmp_path / "project"
    for name in FILES:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name)
    for package in ("launcher", "trainer"):
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def layers(facts: dict[str, Any]) -> list[str]:
    found: list[str] = facts["RootFS"]["Layers"]
    return found


def inspected(name: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(docker("image", "inspect", name))[0]
    return facts


def output(name: str, *words: str, options: tuple[str, ...] = ()) -> str:
    """Return what a container of the image writes to stdout."""
    return docker("run", "--rm", "--network", "none", "--read-only", "--tmpfs", "/tmp", *options, name, *words, deadline=120)


def test_plain_docker_build_makes_the_same_image(image: Built, tag: str) -> None:
    docker("build", "--file", "images/Dockerfile", "--tag", tag, str(ROOT), deadline=900)
    assert layers(inspected(tag)) == layers(image.facts)


def test_a_change_of_the_source_makes_one_small_layer_in_seconds(image: Built, build: Build, project: Path, tag: str) -> None:
    with (project / "trainer" / "health.py").open("a") as stream:
        stream.write("# changed\n")
    began = time.monotonic()
    done = build("--tag", tag, project=project)
    seconds = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    before, after = layers(image.facts), layers(inspected(tag))
    assert len(before) == len(after)
    assert [old for old, new in zip(before, after, strict=True) if old != new] == before[-1:]
    assert seconds < 60  # three, on a quiet machine
    assert output(tag, "-c", "cat /opt/trainer/trainer/health.py", options=("--entrypoint", "sh")).endswith("# changed\n")


def test_up_builds_an_image_of_other_sources_anew_and_says_so(image: Built, tmp_path: Path) -> None:
    assert image.facts["Config"]["Labels"][images.SOURCES] == sources()
    name = unique("stale")
    file = tmp_path / "stale.yaml"
    file.write_text(f"version: 1\nname: {name}\ntensorboard: {{port: {free_port()}}}\ncommand: ['true']\n")
    said = ""
    with cleaned(name, tmp_path / "runs"):
        for _ in range(3):  # another test's `up` may be the one that builds it anew
            # The same layers under a label that tells of others, so that nothing that starts meanwhile is another.
            docker("build", "--tag", image.name, "-", stdin=f"FROM {image.name}\nLABEL {images.SOURCES}=other\n", deadline=300)
            done = launch("up", str(file), "--fresh", runs=tmp_path / "runs")
            assert done.returncode == 0, done.stdout + done.stderr
            assert inspected(image.name)["Config"]["Labels"][images.SOURCES] == sources()
            said += done.stdout + done.stderr
            if "built anew" in said:
                break
    assert f"{image.name} is there, of other sources than this launcher's: it is built anew" in said
    assert layers(inspected(image.name)) == layers(image.facts)


def test_code_is_laid_on_top_and_can_be_imported(build: Build, tmp_path: Path, tag: str) -> None:
    source = tmp_path / "My Code"
    (source / "data").mkdir(parents=True)
    (source / "mine.py").write_text("print('mine runs')\n")
    (source / "secret.txt").write_text("x")
    (source / ".dockerignore").write_text("secret.txt\n.dockerignore\n")
    done = build("--code", str(source), "--tag", tag)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["image"] == tag
    assert "mine runs" in output(tag, "--", "python", "mine.py").splitlines()
    assert output(tag, "-c", "import mine", options=("--workdir", "/tmp", "--entrypoint", "python")) == "mine runs\n"
    assert sorted(
        output(
            tag,
            "/code",
            options=(
                "--entrypoint",
                "ls",
            ),
        ).split()
    ) == ["data", "mine.py"]


def test_what_hardly_belongs_into_an_image_is_named(build: Build, tmp_path: Path, tag: str) -> None:
    (tmp_path / "src" / ".git").mkdir(parents=True)
    (tmp_path / "src" / "a.py").touch()
    done = build("--code", str(tmp_path / "src"), "--tag", tag)
    assert done.returncode == 0, done.stderr
    assert f"note: {tmp_path}/src/.git go into the image too; a .dockerignore" in done.stderr


def test_a_base_image_that_is_not_there(build: Build, tag: str) -> None:
    done = build("--base-image", "no.such.host.invalid/python:1", "--tag", tag)
    assert done.returncode == 1
    told = json.loads(done.stderr.splitlines()[-1])
    assert "does not have the base image no.such.host.invalid/python:1" in told["error"]
    assert "--base-image" in told["remedy"]


def test_a_base_image_without_what_the_build_needs(build: Build, tag: str, tmp_path: Path) -> None:
    bare = f"{tag}-base"
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /\n")
    docker("build", "--tag", bare, str(tmp_path))
    try:
        done = build("--base-image", bare, "--tag", tag)
    finally:
        docker("image", "rm", "--force", bare)
    assert done.returncode == 1
    assert f"{tag} could not be built" in json.loads(done.stderr.splitlines()[-1])["error"]


# A package index of the test's own: one tiny package, over HTTPS with a certificate that nobody knows, or through a proxy.


def wheel(directory: Path, name: str) -> Path:
    """Write a wheel with one module that says hello."""
    path = directory / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "print('hello')\n")
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return path


@pytest.fixture
def package(project: Path, tmp_path: Path) -> Path:
    """Make the project's lock name one tiny package alone, under a name that no cache knows; return its wheel."""
    made = wheel(tmp_path, f"tiny{uuid.uuid4().hex[:12]}")
    digest = hashlib.sha256(made.read_bytes()).hexdigest()
    (project / "requirements" / "image.txt").write_text(f"{made.name.split('-')[0]}==1.0 --hash=sha256:{digest}\n")
    return made


@pytest.fixture(scope="session")
def host() -> str:
    """Return this machine's address as containers of the default network reach it; skip where the engine is in a machine of its own."""
    network = json.loads(docker("network", "inspect", "bridge"))[0]
    address: str = network["IPAM"]["Config"][0].get("Gateway", "172.17.0.1")
    try:
        with ThreadingHTTPServer((address, 0), BaseHTTPRequestHandler):
            return address
    except OSError as error:
        server = json.loads(docker("info", "--format", "{{json .}}"))
        here = sys.platform == "linux" and server["Name"] == socket.gethostname()
        if here:
            pytest.fail(f"the engine is on this machine, and its network's gateway {address} is not: {error}")
        pytest.skip(f"the engine's network gateway {address} is not this machine: the engine is on {server['Name']}")


class Index(ThreadingHTTPServer):
    """Serves one wheel as a package index; `asked` holds the request lines, absolute where it is asked as a proxy."""

    def __init__(self, host: str, package: Path, user: str = "") -> None:
        super().__init__((host, 0), _Handler)
        self.package, self.user, self.asked = package, user, list[str]()


class _Handler(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        wanted = base64.b64encode(self.server.user.encode()).decode()
        if wanted and self.headers.get("Authorization") != f"Basic {wanted}":
            self._answer(401, b"", ("WWW-Authenticate", "Basic"))
        elif self.path.endswith(".whl"):
            self._answer(200, self.server.package.read_bytes(), ("Content-Type", "application/zip"))
        else:
            page = f"<!DOCTYPE html><a href='/files/{self.server.package.name}'>{self.server.package.name}</a>"
            self._answer(200, page.encode(), ("Content-Type", "text/html"))

    def _answer(self, code: int, content: bytes, header: tuple[str, str]) -> None:
        self.send_response(code)
        self.send_header(*header)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@contextmanager
def serving(index: Index) -> Iterator[Index]:
    thread = threading.Thread(target=index.serve_forever, daemon=True)
    thread.start()
    try:
        yield index
    finally:
        index.shutdown()
        index.server_close()
        thread.join(10)


Greets = Callable[[str, Path], None]


@pytest.fixture
def greets() -> Greets:
    def check(name: str, package: Path) -> None:
        assert output(name, "-c", f"import {package.name.split('-')[0]}", options=("--entrypoint", "python")) == "hello\n"

    return check


def test_an_index_with_a_certificate_and_a_password_of_its_own(
    build: Build, project: Path, package: Path, host: str, tmp_path: Path, tag: str, greets: Greets
) -> None:
    certificate, key = certified(host, tmp_path, "company")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with serving(Index(host, package, user="me:s3cret-word")) as index:
        index.socket = context.wrap_socket(index.socket, server_side=True)
        url = f"https://me:s3cret-word@{host}:{index.server_address[1]}/simple"
        config = tmp_path / "pip.conf"
        config.write_text(f"[global]\nindex-url = {url}\nretries = 0\n")
        without = build("--pip-config", str(config), "--tag", tag, project=project)
        assert without.returncode == 1
        told = json.loads(without.stderr.splitlines()[-1])
        assert "certificate is not trusted" in told["error"]
        assert "--ca-file" in told["remedy"]
        assert "s3cret-word" not in without.stderr

        done = build("--pip-config", str(config), "--ca-file", str(certificate), "--tag", tag, project=project)
        assert done.returncode == 0, done.stderr
        assert any(path.endswith(".whl") for path in index.asked)
    greets(tag, package)
    # Neither secret is left: not in the history, not in a file.
    assert "s3cret" not in docker("image", "history", "--no-trunc", tag) + docker("image", "inspect", tag)
    search = "grep -rls -e s3cret-word -e $0 /opt /etc /tmp /run /build /usr/local 2>/dev/null; echo end"
    line = certificate.read_text().splitlines()[5]
    assert output(tag, "-c", search, line, options=("--entrypoint", "sh", "--user", "0")) == "end\n"


def certified(host: str, directory: Path, name: str) -> tuple[Path, Path]:
    """Make a certificate for a host that its own key has signed; return both."""
    certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext",
         f"subjectAltName=IP:{host}", "-keyout", str(key), "-out", str(certificate)],
        capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    return certificate, key


def test_the_usual_certificates_are_trusted_beside_one_s_own(
    image: Built, build: Build, project: Path, package: Path, host: str, tmp_path: Path, tag: str, greets: Greets
) -> None:
    # A base image that names no file of certificates: they are only where its distribution keeps them.
    usual, key = certified(host, tmp_path, "usual")
    company, _ = certified(host, tmp_path, "company")
    base, names = f"{tag}-base", image.facts["Config"]["Labels"]["org.opencontainers.image.base.name"]
    (tmp_path / "Dockerfile").write_text(
        f'FROM {names}\nENV PIP_CERT="" SSL_CERT_FILE=""\nRUN rm -f /usr/lib/ssl/cert.pem\nCOPY usual.pem /etc/ssl/certs/ca-certificates.crt\n'
    )
    docker("build", "--tag", base, str(tmp_path), deadline=300)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(usual, key)
    try:
        with serving(Index(host, package)) as index:
            index.socket = context.wrap_socket(index.socket, server_side=True)
            url = f"PIP_INDEX_URL=https://{host}:{index.server_address[1]}/simple"
            done = build("--base-image", base, "--ca-file", str(company), "--build-arg", url, "--tag", tag, project=project)
        assert done.returncode == 0, done.stderr
        greets(tag, package)
    finally:
        docker("image", "rm", "--force", base)


def test_an_index_behind_a_proxy(build: Build, project: Path, package: Path, host: str, tag: str, greets: Greets) -> None:
    with serving(Index(host, package)) as proxy:
        proxied = f"http://{host}:{proxy.server_address[1]}"
        done = build(
            "--build-arg", f"HTTP_PROXY={proxied}", "--build-arg", f"http_proxy={proxied}",
            "--build-arg", "PIP_INDEX_URL=http://packages.invalid/simple", "--build-arg", "PIP_TRUSTED_HOST=packages.invalid",
            "--tag", tag, project=project,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert proxy.asked
        assert all(path.startswith("http://packages.invalid/") for path in proxy.asked)
    greets(tag, package)
    assert host not in json.dumps(inspected(tag)["Config"])


def test_the_target_for_gpus_is_made_from_its_own_lock(
    build: Build, project: Path, package: Path, host: str, tag: str, greets: Greets
) -> None:
    """With a lock of one package: the CUDA libraries are too much to download in a test."""
    shutil.copy2(project / "requirements" / "image.txt", project / "requirements" / "image-gpu.txt")
    (project / "requirements" / "image.txt").write_text("no-such-package==1.0\n")
    with serving(Index(host, package)) as index:
        url = f"http://{host}:{index.server_address[1]}/simple"
        arguments = ("--build-arg", f"PIP_INDEX_URL={url}", "--build-arg", f"PIP_TRUSTED_HOST={host}", "--tag", tag)
        done = build("--gpu", *arguments, project=project)
    assert done.returncode == 0, done.stderr
    greets(tag, package)
    config = inspected(tag)["Config"]
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in config["Env"]
    assert (config["Entrypoint"], config["User"]) == (["trainer"], "1000:1000")


def test_an_index_that_is_not_there_names_the_ways_out(build: Build, project: Path, package: Path, tag: str, tmp_path: Path) -> None:
    del package
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = http://127.0.0.1:9/simple\nretries = 1\n")
    done = build("--pip-config", str(config), "--tag", tag, project=project)
    assert done.returncode == 1
    told = json.loads(done.stderr.splitlines()[-1])
    assert "cannot be reached from inside the build" in told["error"]
    assert "--build-arg HTTPS_PROXY" in told["remedy"]


def test_a_file_that_is_not_what_the_lock_names_is_not_installed(build: Build, project: Path, package: Path, host: str, tag: str) -> None:
    with zipfile.ZipFile(package, "a") as archive:
        archive.writestr("extra.py", "")
    with serving(Index(host, package)) as index:
        url = f"http://{host}:{index.server_address[1]}/simple"
        done = build("--build-arg", f"PIP_INDEX_URL={url}", "--build-arg", f"PIP_TRUSTED_HOST={host}", "--tag", tag, project=project)
    assert done.returncode == 1
    assert "gives other files than the lock has" in json.loads(done.stderr.splitlines()[-1])["error"]


def test_pip_installs_into_the_trainer_s_environment(image: Built, tmp_path: Path, tag: str, greets: Greets) -> None:
    made = wheel(tmp_path, "tiny")
    (tmp_path / "Dockerfile").write_text(
        f"FROM {image.name}\nUSER root\nCOPY *.whl /tmp/\nRUN pip install --no-cache-dir --no-index /tmp/*.whl\nUSER 1000:1000\n"
    )
    docker("build", "--tag", tag, str(tmp_path), deadline=300)
    greets(tag, made)
