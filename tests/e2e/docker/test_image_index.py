"""Building the image where packages come from elsewhere: a private index, its certificate and password, a proxy."""

import hashlib
import json
import shutil
import socket
import sys
import uuid
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from launcher.docker_cli import docker
from tests.e2e.docker.built import check_package, inspected, output, wheel
from tests.e2e.docker.conftest import Build, Built
from tests.e2e.docker.index import Index, certified, serving

pytestmark = pytest.mark.docker


@pytest.fixture
def package(project: Path, tmp_path: Path) -> Path:
    """Reduce the project's lock to one tiny package, under a name that no cache has; return its wheel."""
    package = wheel(tmp_path, f"tiny{uuid.uuid4().hex[:12]}")
    digest = hashlib.sha256(package.read_bytes()).hexdigest()
    (project / "requirements" / "image.txt").write_text(f"{package.name.split('-')[0]}==1.0 --hash=sha256:{digest}\n")
    return package


@pytest.fixture(scope="session")
def host() -> str:
    """Return this machine's address as containers of the default network reach it; skip if the engine is on another machine."""
    network = json.loads(docker("network", "inspect", "bridge"))[0]
    address: str = network["IPAM"]["Config"][0].get("Gateway", "172.17.0.1")
    try:
        with ThreadingHTTPServer((address, 0), BaseHTTPRequestHandler):
            return address
    except OSError as error:
        server = json.loads(docker("info", "--format", "{{json .}}"))
        if sys.platform == "linux" and server["Name"] == socket.gethostname():
            pytest.fail(f"the engine is on this machine, and its network's gateway {address} is not: {error}")
        pytest.skip(f"the engine's network gateway {address} is not this machine: the engine is on {server['Name']}")


def test_packages_come_from_an_index_with_a_private_certificate_and_a_password(
    build: Build, project: Path, package: Path, host: str, tmp_path: Path, tag: str
) -> None:
    certificate, key = certified(host, tmp_path, "company")
    with serving(Index(host, package, user="me:s3cret-word", certificate=(certificate, key))) as index:
        url = f"https://me:s3cret-word@{host}:{index.server_address[1]}/simple"
        config = tmp_path / "pip.conf"
        config.write_text(f"[global]\nindex-url = {url}\nretries = 0\n")
        without_ca_file = build("--pip-config", str(config), "--tag", tag, project=project)
        assert without_ca_file.returncode == 1
        error = json.loads(without_ca_file.stderr.splitlines()[-1])
        assert "certificate is not trusted" in error["error"]
        assert "--ca-file" in error["remedy"]
        assert "s3cret-word" not in without_ca_file.stderr

        result = build("--pip-config", str(config), "--ca-file", str(certificate), "--tag", tag, project=project)
        assert result.returncode == 0, result.stderr
        assert any(path.endswith(".whl") for path in index.requested)
    check_package(tag, package)
    # No secret is left in the history or in a file.
    assert "s3cret" not in docker("image", "history", "--no-trunc", tag) + docker("image", "inspect", tag)
    search = "grep -rls -e s3cret-word -e $0 /opt /etc /tmp /run /build /usr/local 2>/dev/null; echo end"
    line = certificate.read_text().splitlines()[5]
    assert output(tag, "-c", search, line, options=("--entrypoint", "sh", "--user", "0")) == "end\n"


def test_the_usual_certificates_are_trusted_beside_a_private_one(
    image: Built, build: Build, project: Path, package: Path, host: str, tmp_path: Path, tag: str
) -> None:
    # A base image that names no file of certificates: they are only where its distribution keeps them.
    usual, key = certified(host, tmp_path, "usual")
    company, _ = certified(host, tmp_path, "company")
    base, base_of_image = f"{tag}-base", image.facts["Config"]["Labels"]["org.opencontainers.image.base.name"]
    (tmp_path / "Dockerfile").write_text(
        f'FROM {base_of_image}\nENV PIP_CERT="" SSL_CERT_FILE=""\nRUN rm -f /usr/lib/ssl/cert.pem\nCOPY usual.pem /etc/ssl/certs/ca-certificates.crt\n'
    )
    docker("build", "--tag", base, str(tmp_path), timeout=300)
    try:
        with serving(Index(host, package, certificate=(usual, key))) as index:
            url = f"PIP_INDEX_URL=https://{host}:{index.server_address[1]}/simple"
            result = build("--base-image", base, "--ca-file", str(company), "--build-arg", url, "--tag", tag, project=project)
        assert result.returncode == 0, result.stderr
        check_package(tag, package)
    finally:
        docker("image", "rm", "--force", base)


def test_packages_come_through_a_proxy(build: Build, project: Path, package: Path, host: str, tag: str) -> None:
    with serving(Index(host, package)) as proxy:
        proxied = f"http://{host}:{proxy.server_address[1]}"
        result = build(
            "--build-arg", f"HTTP_PROXY={proxied}", "--build-arg", f"http_proxy={proxied}",
            "--build-arg", "PIP_INDEX_URL=http://packages.invalid/simple", "--build-arg", "PIP_TRUSTED_HOST=packages.invalid",
            "--tag", tag, project=project,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        assert proxy.requested
        assert all(path.startswith("http://packages.invalid/") for path in proxy.requested)
    check_package(tag, package)
    assert host not in json.dumps(inspected(tag)["Config"])


def test_the_target_for_gpus_is_built_from_its_own_lock(build: Build, project: Path, package: Path, host: str, tag: str) -> None:
    """With a lock of one package: the CUDA libraries are too much to download in a test."""
    shutil.copy2(project / "requirements" / "image.txt", project / "requirements" / "image-gpu.txt")
    (project / "requirements" / "image.txt").write_text("no-such-package==1.0\n")
    with serving(Index(host, package)) as index:
        url = f"http://{host}:{index.server_address[1]}/simple"
        arguments = ("--build-arg", f"PIP_INDEX_URL={url}", "--build-arg", f"PIP_TRUSTED_HOST={host}", "--tag", tag)
        result = build("--gpu", *arguments, project=project)
    assert result.returncode == 0, result.stderr
    check_package(tag, package)
    config = inspected(tag)["Config"]
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in config["Env"]
    assert (config["Entrypoint"], config["User"]) == (["trainer"], "1000:1000")


def test_an_unreachable_index_is_an_error_with_remedies(build: Build, project: Path, package: Path, tag: str, tmp_path: Path) -> None:
    del package
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = http://127.0.0.1:9/simple\nretries = 1\n")
    result = build("--pip-config", str(config), "--tag", tag, project=project)
    assert result.returncode == 1
    error = json.loads(result.stderr.splitlines()[-1])
    assert "cannot be reached from inside the build" in error["error"]
    assert "--build-arg HTTPS_PROXY" in error["remedy"]


def test_a_file_that_differs_from_the_lock_is_not_installed(build: Build, project: Path, package: Path, host: str, tag: str) -> None:
    with zipfile.ZipFile(package, "a") as archive:
        archive.writestr("extra.py", "")
    with serving(Index(host, package)) as index:
        url = f"http://{host}:{index.server_address[1]}/simple"
        result = build("--build-arg", f"PIP_INDEX_URL={url}", "--build-arg", f"PIP_TRUSTED_HOST={host}", "--tag", tag, project=project)
    assert result.returncode == 1
    assert "serves files that differ from the lock file's" in json.loads(result.stderr.splitlines()[-1])["error"]
