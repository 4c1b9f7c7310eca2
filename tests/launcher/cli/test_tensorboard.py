"""`launcher tensorboard`: the real TensorBoard on a run's logs."""

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


def test_tensorboard_answers_on_loopback_and_leaves_nothing_behind(
    cli: Cli, spec: Spec, tmp_path: Path, environment: dict[str, str]
) -> None:
    assert cli("up", spec("steps", "1", "0")).returncode == 0
    (tmp_path / "runs" / "toy" / "logs" / "train").mkdir(parents=True)
    # TensorBoard's own imports warn.
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
        address = next(match for line in process.stdout if (match := re.search(r"http://[^ ]+", line)))
        assert address[0].startswith(("http://127.0.0.1:", "http://localhost:"))
        with urllib.request.urlopen(f"{address[0].rstrip('/')}/data/environment", timeout=20) as response:
            assert b"runs/toy/logs" in response.read()
    finally:
        process.terminate()
        process.communicate(timeout=20)


def test_a_run_without_logs_and_a_port_in_use_are_refused(cli: Cli, spec: Spec, tmp_path: Path) -> None:
    assert cli("up", spec("steps", "1", "0")).returncode == 0
    result = cli("tensorboard")
    assert result.returncode == 2
    assert "no logs" in result.stderr

    (tmp_path / "runs" / "toy" / "logs" / "train").mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = cli("tensorboard", "--port", str(port))
    assert result.returncode == 2
    assert f"port {port}" in result.stderr
    for option in ([], ["--port", "0"]):
        result = cli("tensorboard", "--host", "ü..x", *option)
        assert (result.returncode, "ü..x" in result.stderr, "give " in result.stderr) == (2, True, True), result.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_port_in_use_is_recognized_at_any_address(host: str) -> None:
    try:
        taken = socket.create_server((host, 0), family=socket.AF_INET6 if host == "::1" else socket.AF_INET)
    except OSError as error:
        pytest.skip(f"this machine has no {host}: {error}")
    with taken:
        port = taken.getsockname()[1]
        assert not is_free(host, port)
    assert is_free(host, port)


def test_a_missing_tensorboard_is_an_error_that_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # None in sys.modules makes the import fail.
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert run(["tensorboard", "toy"]) == 1
    assert "pip install tensorboard" in capsys.readouterr().err
