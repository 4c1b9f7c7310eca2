"""The controllers of JobSet and Kueue, built from their Go modules, and run beside a cluster on this machine."""

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.kubernetes.cluster import kubectl, until
from tests.processes import end, free_port

BUILD_TIMEOUT = 900.0  # seconds for a build with nothing cached
# Kueue needs the certificate of its metrics at this path, also if it serves no metrics: https://github.com/kubernetes-sigs/kueue/blob/v0.17.0/cmd/kueue/main.go
_WITH_CERTIFICATE = """
mount -t tmpfs tmpfs /mnt && cp -a /etc /mnt && mkdir -p /mnt/etc/kueue/metrics/certs && cp "$0"/tls.* /mnt/etc/kueue/metrics/certs &&
mount --bind /mnt/etc /etc && exec "$@"
"""


@dataclass(frozen=True)
class Controller:
    """A controller: its Go module and version, the package of its program, and its configuration except for addresses.

    Only those of its webhooks that are named in `webhooks` are registered, or all if that is empty.
    """

    module: str
    version: str
    package: str
    configuration: dict[str, Any]
    webhooks: tuple[str, ...] = ()
    launch: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        """Return the last part of its module's name."""
        return self.module.rpartition("/")[2]


JOBSET = Controller("sigs.k8s.io/jobset", "v0.10.1", ".", {"apiVersion": "config.jobset.x-k8s.io/v1alpha1", "kind": "Configuration"})
KUEUE = Controller(
    "sigs.k8s.io/kueue",
    "v0.17.0",
    "./cmd/kueue",
    {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "integrations": {"frameworks": ["batch/job", "jobset.x-k8s.io/jobset"]},
        "featureGates": {"VisibilityOnDemand": False, "MultiKueue": False, "TopologyAwareScheduling": False},
    },
    # The webhooks of namespaced objects that a queue admits. Those of queues and flavors would apply to all namespaces.
    ("mjob.kb.io", "mjobset.kb.io", "mworkload.kb.io", "vjob.kb.io", "vjobset.kb.io", "vworkload.kb.io"),
    ("unshare", "--mount", "sh", "-c", _WITH_CERTIFICATE),
)


def source(module: str, version: str, directory: Path) -> Path:
    """Return the directory of a Go module; skip if it cannot be fetched."""
    if shutil.which("go") is None:
        pytest.skip(f"go is not installed, which fetches {module}")
    result = subprocess.run(
        ["go", "mod", "download", "-json", f"{module}@{version}"], cwd=directory, capture_output=True, text=True, timeout=120, check=False
    )
    if result.returncode:
        pytest.skip(f"{module} {version} cannot be fetched: {(result.stdout + result.stderr).strip()[-200:]}")
    return Path(json.loads(result.stdout)["Dir"])


@dataclass(frozen=True)
class Build:
    """A build of a controller in the background, from its module at `source`."""

    controller: Controller
    source: Path
    directory: Path
    process: "subprocess.Popen[str]"

    def program(self) -> Path:
        """Wait for its end and return the program; skip if it cannot be built."""
        _, errors = self.process.communicate(timeout=BUILD_TIMEOUT)
        if self.process.returncode:
            pytest.skip(f"{self.controller.name} cannot be built here: {errors.strip()[-300:]}")
        return self.directory / self.controller.name


@contextlib.contextmanager
def building(controller: Controller, directory: Path) -> Iterator[Build]:
    """Build a controller during a block, which takes minutes if nothing is cached; kill the build at the end of the block."""
    path = source(controller.module, controller.version, directory)
    command = [
        "nice",
        "go",
        "build",
        "-mod=mod",
        "-trimpath",
        "-ldflags",
        "-s -w",
        "-o",
        str(directory / controller.name),
        controller.package,
    ]
    env = os.environ | {"CGO_ENABLED": "0"}
    process = subprocess.Popen(
        command, cwd=path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    with process:
        try:
            yield Build(controller, path, directory, process)
        finally:
            if process.poll() is None:  # otherwise its process group may belong to another process by now
                os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def running(build: Build, namespace: str) -> Iterator[Path]:
    """Run a controller, with its webhooks for one namespace; yield the file with its output. Skip if it cannot be built.

    The API server calls the webhooks on the loopback of this machine, so it has to run on this machine.
    """
    program, directory = build.program(), build.directory
    certificate = _certificate(directory)
    webhooks, health = free_port(), free_port()
    configuration = {
        **build.controller.configuration,
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"host": "127.0.0.1", "port": webhooks, "certDir": str(directory)},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
    }
    (directory / "configuration.yaml").write_text(json.dumps(configuration))
    log = directory / "log"
    caller = {"url": f"https://127.0.0.1:{webhooks}", "caBundle": base64.b64encode(certificate).decode()}
    registered = yaml.safe_dump_all(_registered(build, namespace, caller))
    launch = [*build.controller.launch, str(directory)] if build.controller.launch else []
    with log.open("w") as output:
        process = subprocess.Popen([*launch, str(program), "--config", str(directory / "configuration.yaml")], stdout=output, stderr=output)
    try:
        until(
            lambda: _answers(f"http://127.0.0.1:{health}/readyz"),
            60,
            f"{build.controller.name} to be ready",
            lambda: log.read_text()[-3000:],
        )
        kubectl("create", "-f", "-", text=registered)
        yield log
    finally:
        # The webhooks are deleted before the controller ends: otherwise nothing could be created in the namespace any more.
        kubectl("delete", "--ignore-not-found", "-f", "-", text=registered, check=False)
        end(process)


def _registered(build: Build, namespace: str, caller: dict[str, str]) -> list[dict[str, Any]]:
    """Return the controller's own registrations of its webhooks, changed to its address here and to one namespace."""
    registrations = list(yaml.safe_load_all((build.source / "config" / "components" / "webhook" / "manifests.yaml").read_text()))
    for registration in registrations:
        registration["metadata"]["name"] = f"{namespace}-{build.controller.name}-{registration['metadata']['name']}"
        registration["webhooks"] = [
            webhook for webhook in registration["webhooks"] if webhook["name"] in (build.controller.webhooks or {webhook["name"]})
        ]
        for webhook in registration["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            webhook["clientConfig"] = {**caller, "url": caller["url"] + path}
            webhook["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    return registrations


def _certificate(directory: Path) -> bytes:
    """Create a key and a certificate for 127.0.0.1, valid for a day, and return the certificate."""
    key, certificate = directory / "tls.key", directory / "tls.crt"
    names = ["-subj", "/CN=controller", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *names, *files]
    subprocess.run(command, capture_output=True, check=True, timeout=60)
    return certificate.read_bytes()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextlib.contextmanager
def installed_crds(*definitions: Path) -> Iterator[None]:
    """Install the CustomResourceDefinitions of these files for a block; skip if the cluster has one of them already."""
    names = [yaml.safe_load(file.read_text())["metadata"]["name"] for file in definitions]
    if existing := [name for name in names if kubectl("get", "crd", name, check=False).returncode == 0]:
        pytest.skip(f"the cluster has {', '.join(existing)} already")
    files = [argument for file in definitions for argument in ("-f", str(file))]
    kubectl("create", *files)
    try:
        until(
            lambda: all(map(_is_served, names)),
            30,
            f"the cluster to serve {names}",
            lambda: kubectl("get", "crd", *names, "-o", "yaml").stdout,
        )
        yield
    finally:
        kubectl("delete", "--ignore-not-found", "--timeout=60s", *files, timeout=90)


def _is_served(definition: str) -> bool:
    status = json.loads(kubectl("get", "crd", definition, "-o", "json").stdout).get("status", {})
    return any(condition["type"] == "Established" and condition["status"] == "True" for condition in status.get("conditions") or ())


def main() -> None:
    """Build all controllers into Go's cache before the tests. If one cannot be built, its tests report why."""
    with contextlib.ExitStack() as stack:
        builds = []
        for controller in (JOBSET, KUEUE):
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            with contextlib.suppress(pytest.skip.Exception):
                builds.append(stack.enter_context(building(controller, directory)))
        for build in builds:
            with contextlib.suppress(pytest.skip.Exception):
                build.program()


if __name__ == "__main__":
    main()
