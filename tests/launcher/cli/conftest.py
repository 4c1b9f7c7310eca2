"""The command line as users run it: in its own process and directory. `cli` forks the process, LAUNCHER is the command to start it normally."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.cli.main import run as launcher
from tests import forked

Cli = Callable[..., subprocess.CompletedProcess[str]]

ROOT = Path(__file__).parents[3]
LAUNCHER = (sys.executable, "-m", "launcher")


@pytest.fixture
def environment() -> dict[str, str]:
    """The environment of a user: the package is importable, and no variable changes the output."""
    unset = ("LAUNCHER_", "TRAINER_", "NO_COLOR", "FORCE_COLOR")
    return {name: value for name, value in os.environ.items() if not name.startswith(unset)} | {
        "PYTHONPATH": str(ROOT),
        "TERM": "xterm-256color",
        "PYTHONWARNINGS": "error",
    }


@pytest.fixture
def cli(tmp_path: Path, environment: dict[str, str]) -> Iterator[Cli]:
    """Run a command line in an empty directory; runs are killed at the end of the test."""

    def run(*arguments: str, stdin: str = "", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return forked.launcher(*arguments, cwd=tmp_path, env=environment | (env or {}), stdin=stdin)

    yield run
    for state in (tmp_path / "runs").glob("*/launcher/state.json"):
        launcher(["down", state.parent.parent.name, "--now", "--runs", str(tmp_path / "runs")])


Spec = Callable[..., str]


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    """Write `toy.yaml`, a spec whose command is jobs.py with the given arguments, and return the file's name."""

    def write(*arguments: str, grace: str = "10s") -> str:
        command = ["python", str(Path(__file__).with_name("jobs.py")), *arguments]
        document = {"version": 1, "name": "toy", "strategy": "single", "command": command}
        document["limits"] = {"max_restarts": 0, "grace_period": grace}
        (tmp_path / "toy.yaml").write_text(json.dumps(document))
        return "toy.yaml"

    return write
