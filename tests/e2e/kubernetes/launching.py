"""The launcher's command line on a real cluster, as a user types it."""

import contextlib
import dataclasses
import io
import json
import subprocess
import sys
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from launcher.backend.kubernetes import helper_pod
from launcher.cli.main import run
from tests import forked
from tests.e2e.kubernetes.cluster import ROOT, Namespace, kubectl
from tests.e2e.kubernetes.relay import Relay

TRAINING_TIMEOUT = 900.0  # seconds for a run of mnist on a busy machine


@dataclass(frozen=True)
class Launcher:
    """The command line, in one namespace and with one directory of runs."""

    namespace: Namespace
    runs: Path
    env: dict[str, str]
    names_namespace: bool = True  # on the command line

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the launcher; its output goes to a pipe."""
        return subprocess.Popen(
            self._command(arguments), cwd=ROOT, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def __call__(self, *arguments: str, code: int = 0, timeout: float = 120) -> str:
        """Run the launcher, check its exit code, and return its output; fail after `timeout` with the output so far."""
        command = f"launcher {' '.join(arguments)}"
        try:
            result = forked.run(self._command(arguments), cwd=ROOT, env=self.env, timeout=timeout, preload=forked.KUBERNETES)
        except subprocess.TimeoutExpired as error:
            output = "".join(cast("tuple[str, str]", (error.stdout, error.stderr)))[-8000:]
            pods = ""
            with contextlib.suppress(subprocess.TimeoutExpired):
                pods = self.namespace.kubectl("get", "pods", "-o", "wide", check=False)
            raise AssertionError(f"{command}: not done after {timeout:.0f} s:\n{output}\n{pods}") from None
        assert result.returncode == code, f"{command}:\n{result.stdout}{result.stderr}"
        return result.stdout + result.stderr

    def status(self, name: str) -> dict[str, Any]:
        """Return `launcher status --json`."""
        status = json.loads(self("status", name, "--json"))
        assert isinstance(status, dict)
        return status

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        verb, *rest = arguments
        namespace = ["--namespace", self.namespace.name] if self.names_namespace else []
        return [sys.executable, "-m", "launcher", verb, *rest, "--on", "kubernetes", *namespace, "--runs", str(self.runs)]


def output_at_end(process: subprocess.Popen[str], timeout: float) -> str:
    """Wait for a process to end and return its output; fail with the output after `timeout` seconds."""
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate(timeout=10)
        raise AssertionError(f"waited {timeout:.0f} s for the end of {process.args!r}; it wrote:\n{output}") from None
    return output


def through_relay(launcher: Launcher, tmp_path: Path) -> tuple[Launcher, Relay]:
    """Return a command line that reaches the API server through a relay, and that relay."""
    config = json.loads(kubectl("config", "view", "--raw", "--minify", "-o", "json").stdout)
    server = urllib.parse.urlsplit(config["clusters"][0]["cluster"]["server"])
    relay = Relay(str(server.hostname), server.port or 443)
    config["clusters"][0]["cluster"] |= {"server": f"https://127.0.0.1:{relay.port}", "tls-server-name": server.hostname}
    kubeconfig = tmp_path / f"kubeconfig-{relay.port}"
    kubeconfig.write_text(json.dumps(config))
    return dataclasses.replace(launcher, env={**launcher.env, "KUBECONFIG": str(kubeconfig)}), relay


def remaining_objects(namespace: Namespace) -> list[str]:
    """Return the names of the launcher's objects in the namespace, except pods."""
    kinds = "jobs,pods,deployments,services,networkpolicies,configmaps,persistentvolumeclaims,serviceaccounts,roles,rolebindings"
    names = namespace.kubectl("get", kinds, "-l", "app.kubernetes.io/name=tf-launcher", "-o", "name").split()
    return sorted(name.partition("/")[2] for name in names if not name.startswith("pod/"))


def doctor(namespace: str, *arguments: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """Run `launcher doctor` in this process; return the exit code, and level and text of each finding."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        code = run(["doctor", *arguments, "--on", "kubernetes", "--namespace", namespace, "--json"])
    return code, {finding["what"]: (finding["level"], finding["words"]) for finding in json.loads(output.getvalue())["findings"]}


def short_probe_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the time that `doctor` waits if a transient condition prevents the start of its pod."""
    monkeypatch.setattr(helper_pod, "_PROBE_TIMEOUTS", dict.fromkeys(helper_pod._PROBE_TIMEOUTS, 3.0))
