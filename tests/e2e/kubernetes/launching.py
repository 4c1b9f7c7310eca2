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

UP = 900.0  # seconds within which a run of mnist has trained, on a machine that does much else


@dataclass(frozen=True)
class Launcher:
    """The command line, in one namespace and with one directory of runs."""

    namespace: Namespace
    runs: Path
    env: dict[str, str]
    said: bool = True  # the namespace is on the command line

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the launcher; its output goes to a pipe."""
        return subprocess.Popen(self._words(arguments), cwd=ROOT, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def __call__(self, *arguments: str, code: int = 0, timeout: float = 120) -> str:
        """Run the launcher, check its exit code, and return what it wrote; what takes longer fails with what it wrote until then."""
        command = f"launcher {' '.join(arguments)}"
        try:
            done = forked.run(self._words(arguments), cwd=ROOT, env=self.env, timeout=timeout, engine=forked.KUBERNETES)
        except subprocess.TimeoutExpired as late:
            wrote = "".join(cast("tuple[str, str]", (late.stdout, late.stderr)))[-8000:]
            pods = ""
            with contextlib.suppress(subprocess.TimeoutExpired):
                pods = self.namespace.kubectl("get", "pods", "-o", "wide", check=False)
            raise AssertionError(f"{command}: not done after {timeout:.0f} s:\n{wrote}\n{pods}") from None
        assert done.returncode == code, f"{command}:\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def status(self, name: str) -> dict[str, Any]:
        """Return what `launcher status --json` tells."""
        told = json.loads(self("status", name, "--json"))
        assert isinstance(told, dict)
        return told

    def _words(self, arguments: tuple[str, ...]) -> list[str]:
        verb, *rest = arguments
        namespace = ["--namespace", self.namespace.name] if self.said else []
        return [sys.executable, "-m", "launcher", verb, *rest, "--on", "kubernetes", *namespace, "--runs", str(self.runs)]


def said_to_its_end(process: subprocess.Popen[str], within: float) -> str:
    """Return what a process has written when it has ended; fail with that where it has not ended within so many seconds."""
    try:
        written, _ = process.communicate(timeout=within)
    except subprocess.TimeoutExpired:
        process.kill()
        written, _ = process.communicate(timeout=10)
        raise AssertionError(f"waited {within:.0f} s for the end of {process.args!r}; it wrote:\n{written}") from None
    return written


def far_away(launcher: Launcher, tmp_path: Path) -> tuple[Launcher, Relay]:
    """Return the command line on a way to the API server that can be cut or slowed, and that way."""
    config = json.loads(kubectl("config", "view", "--raw", "--minify", "-o", "json").stdout)
    server = urllib.parse.urlsplit(config["clusters"][0]["cluster"]["server"])
    relay = Relay(str(server.hostname), server.port or 443)
    config["clusters"][0]["cluster"] |= {"server": f"https://127.0.0.1:{relay.port}", "tls-server-name": server.hostname}
    kubeconfig = tmp_path / f"kubeconfig-{relay.port}"
    kubeconfig.write_text(json.dumps(config))
    return dataclasses.replace(launcher, env={**launcher.env, "KUBECONFIG": str(kubeconfig)}), relay


def left(namespace: Namespace) -> list[str]:
    """Return what is left in the namespace of what the launcher makes."""
    kinds = "jobs,pods,deployments,services,networkpolicies,configmaps,persistentvolumeclaims,serviceaccounts,roles,rolebindings"
    names = namespace.kubectl("get", kinds, "-l", "app.kubernetes.io/name=tf-launcher", "-o", "name").split()
    return sorted(name.partition("/")[2] for name in names if not name.startswith("pod/"))


def doctor(namespace: str, *arguments: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """Run `launcher doctor` in this process; return the exit code, and what was found: level and words of each."""
    with contextlib.redirect_stdout(io.StringIO()) as told:
        code = run(["doctor", *arguments, "--on", "kubernetes", "--namespace", namespace, "--json"])
    return code, {one["what"]: (one["level"], one["words"]) for one in json.loads(told.getvalue())["findings"]}


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `doctor` time out soon where something keeps its pod from starting that may yet mend itself."""
    monkeypatch.setattr(helper_pod, "_PROBE_TIMEOUTS", dict.fromkeys(helper_pod._PROBE_TIMEOUTS, 3.0))
