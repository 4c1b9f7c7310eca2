"""JobSet's controller, built from its Go module, beside a cluster that runs on this machine."""

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.kubernetes.cluster import kubectl, until
from tests.processes import end, free_port

BUILT = 900.0  # seconds for a build with nothing cached


def module(version: str, directory: Path) -> Path:
    """Return the directory of JobSet's Go module; skip where there is no Go to fetch it."""
    if shutil.which("go") is None:
        pytest.skip("there is no go here, which fetches JobSet")
    command = ["go", "mod", "download", "-json", f"sigs.k8s.io/jobset@{version}"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        pytest.skip(f"JobSet {version} cannot be fetched: {(done.stdout + done.stderr).strip()[-200:]}")
    return Path(json.loads(done.stdout)["Dir"])


@dataclass(frozen=True)
class Build:
    """A build of JobSet's controller from its module at `source`, which goes on beside other things."""

    source: Path
    directory: Path
    process: "subprocess.Popen[str]"

    def program(self) -> Path:
        """Wait for its end and return the program; skip where it cannot be built."""
        _, said = self.process.communicate(timeout=BUILT)
        if self.process.returncode:
            pytest.skip(f"JobSet cannot be built here: {said.strip()[-300:]}")
        return self.directory / "jobset"


@contextlib.contextmanager
def building(source: Path, directory: Path) -> Iterator[Build]:
    """Build JobSet's controller for a block, for minutes where nothing is cached; give it up at the end of the block."""
    words = ["nice", "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", str(directory / "jobset"), "."]
    env = os.environ | {"CGO_ENABLED": "0"}
    process = subprocess.Popen(
        words, cwd=source, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    with process:
        try:
            yield Build(source, directory, process)
        finally:
            if process.poll() is None:  # else its number may be another's by now
                os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def controller(build: Build, namespace: str) -> Iterator[Path]:
    """Run JobSet's controller, with its webhooks for one namespace; yield the file with what it writes. Skip where it cannot be built.

    The API server calls the webhooks on the loopback of this machine, so it has to run here.
    """
    program, source, directory = build.program(), build.source, build.directory
    certificate = _certificate(directory)
    webhooks, health = free_port(), free_port()
    configuration = {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"host": "127.0.0.1", "port": webhooks, "certDir": str(directory)},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
    }
    (directory / "configuration.yaml").write_text(json.dumps(configuration))
    log = directory / "jobset.log"
    registered = yaml.safe_dump_all(_registered(source, namespace, f"https://127.0.0.1:{webhooks}", certificate))
    with log.open("w") as output:
        process = subprocess.Popen([str(program), "--config", str(directory / "configuration.yaml")], stdout=output, stderr=output)
    try:
        until(lambda: _answers(f"http://127.0.0.1:{health}/readyz"), 60, "JobSet's controller to be ready", lambda: log.read_text()[-3000:])
        kubectl("create", "-f", "-", text=registered)
        yield log
    finally:
        # First who would be asked: else nothing could be made in the namespace any more.
        kubectl("delete", "--ignore-not-found", "-f", "-", text=registered, check=False)
        end(process)


def _registered(source: Path, namespace: str, url: str, certificate: bytes) -> list[dict[str, Any]]:
    """Return the registrations of the webhooks as JobSet has them, but by address and for one namespace."""
    made = list(yaml.safe_load_all((source / "config" / "components" / "webhook" / "manifests.yaml").read_text()))
    for one in made:
        one["metadata"]["name"] = f"{namespace}-{one['metadata']['name']}"
        for webhook in one["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            webhook["clientConfig"] = {"url": url + path, "caBundle": base64.b64encode(certificate).decode()}
            webhook["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    return made


def _certificate(directory: Path) -> bytes:
    """Make a key and a certificate for 127.0.0.1, valid for a day, and return the certificate."""
    key, certificate = directory / "tls.key", directory / "tls.crt"
    names = ["-subj", "/CN=jobset", "-addext", "subjectAltName=IP:127.0.0.1"]
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
