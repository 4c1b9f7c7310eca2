"""Output that is closed, or whose encoding lacks a character. Python opens these streams as it starts, so each test starts a new process."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.launcher.cli.conftest import LAUNCHER, Cli, Spec

CHECK_MARK = "\N{CHECK MARK}"


@pytest.fixture
def latin1(environment: dict[str, str]) -> dict[str, str]:
    """The environment of a user whose terminal lacks most characters."""
    return environment | {"PYTHONIOENCODING": "latin-1"}


def test_a_character_that_the_terminal_lacks_stops_no_run(latin1: dict[str, str], cli: Cli, tmp_path: Path) -> None:
    spec = {"version": 1, "name": "toy", "strategy": "single", "command": ["sh", "-c", f"echo {CHECK_MARK}; echo done"]}
    (tmp_path / "toy.yaml").write_text(json.dumps(spec))
    result = subprocess.run([*LAUNCHER, "up", "toy.yaml"], cwd=tmp_path, env=latin1, capture_output=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert rb"\u2713" in result.stdout
    assert json.loads(cli("status", "toy", "--json").stdout)["state"] == "succeeded"


def test_render_prints_the_same_on_every_terminal(latin1: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "toy.yaml").write_text(json.dumps({"version": 1, "name": "toy", "command": ["echo", CHECK_MARK], "image": "mine:1"}))
    render = [*LAUNCHER, "render", "toy.yaml", "--to", "compose"]
    printed = subprocess.run(render, cwd=tmp_path, env=latin1, capture_output=True, timeout=30, check=True).stdout
    subprocess.run([*render, "-o", "compose.yaml"], cwd=tmp_path, env=latin1, timeout=30, check=True)
    assert printed == (tmp_path / "compose.yaml").read_bytes()
    assert CHECK_MARK in str(yaml.safe_load(printed))


def test_a_closed_stream_is_no_error(cli: Cli, spec: Spec, environment: dict[str, str], tmp_path: Path) -> None:
    assert cli("up", spec("steps", "1", "0")).returncode == 0
    every = ("ls", "ls --json", "logs --raw")  # each writes in its own way
    for closed, verbs in {"<&-": every[2:], ">&-": every, "2>&-": every[::2], "<&- >&- 2>&-": every}.items():
        for arguments in verbs:
            shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *LAUNCHER, *arguments.split()]
            result = subprocess.run(shell, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=30, check=False)
            assert (result.returncode, result.stderr) == (0, ""), (closed, arguments)
