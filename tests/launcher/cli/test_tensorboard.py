"""`tensorboard`: the real one on a run's logs."""

import re
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from launcher.cli.main import run
from launcher.runs.ports import is_free
from tests.launcher.cli.conftest import LAUNCHER, Cli, Spec


@pytest.fixture
def logs(cli: Cli, spec: Spec, tmp_path: Path) -> Path:
    """The logs directory of a run that is done."""
    assert cli("up", spec("steps", "1", "0")).returncode == 0
    directory = tmp_path / "runs" / "toy" / "logs" / "train"
    directory.mkdir(parents=True)
    return directory


def test_it_answers_on_loopback_and_leaves_nothing_behind(logs: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    del logs
    # TensorBoard itself warns of what it uses; that is not ours to judge.
    process = subprocess.Popen(
        [*LAUNCHER, "tensorboard", "--port", "0"],
        cwd=tmp_path,
        env=environment | {"PYTHONWARNINGS": "default"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = next(found for line in process.stdout if (found := re.search(r"http://[^ ]+", line)))
        assert address[0].startswith(("http://127.0.0.1:", "http://localhost:"))
        with urllib.request.urlopen(f"{address[0].rstrip('/')}/data/environment", timeout=20) as answer:
            assert b"runs/toy/logs" in answer.read()
    finally:
        process.terminate()
        process.communicate(timeout=20)


def test_a_port_in_use_is_told(logs: Path, cli: Cli) -> None:
    del logs
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = cli("tensorboard", "--port", str(port))
    assert done.returncode == 2
    assert f"port {port}" in done.stderr
    for port in ([], ["--port", "0"]):
        done = cli("tensorboard", "--host", "ü..x", *port)
        assert (done.returncode, "ü..x" in done.stderr, "give " in done.stderr) == (2, True, True), done.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_port_of_any_address_is_tried(host: str) -> None:
    try:
        taken = socket.create_server((host, 0), family=socket.AF_INET6 if host == "::1" else socket.AF_INET)
    except OSError as error:
        pytest.skip(f"this machine has no {host}: {error}")
    with taken:
        port = taken.getsockname()[1]
        assert not is_free(host, port)
    assert is_free(host, port)


def test_a_run_without_logs_is_told(cli: Cli, spec: Spec) -> None:
    assert cli("up", spec("steps", "1", "0")).returncode == 0
    done = cli("tensorboard")
    assert done.returncode == 2
    assert "no logs" in done.stderr


def test_without_tensorboard_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    # None in sys.modules is how Python notes that a module cannot be had.
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert run(["tensorboard", "toy"]) == 1
    assert "pip install tensorboard" in capsys.readouterr().err
