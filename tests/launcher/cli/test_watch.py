"""Runs in the background: status, logs, wait, ls and down."""

import json
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.launcher.cli.conftest import LAUNCHER, Cli, Spec


def eventually(check: Callable[[], bool], what: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s"
        time.sleep(0.1)


def has_written(tmp_path: Path, text: str) -> Callable[[], bool]:
    log = tmp_path / "runs" / "toy" / "launcher" / "tasks" / "chief.log"
    return lambda: log.exists() and text in log.read_text()


def test_a_run_in_the_background_from_up_to_down(cli: Cli, spec: Spec, tmp_path: Path) -> None:
    file = spec("forever")
    up = cli("up", file, "--detach")
    assert up.returncode == 0, up.stderr
    assert "launcher status toy" in up.stdout
    eventually(has_written(tmp_path, "up"), "the first line")

    status = cli("status")
    assert "\x1b" not in status.stdout
    assert "toy on local, single" in status.stdout
    row = next(line.split() for line in status.stdout.splitlines() if line.startswith("chief"))
    assert row[1] == "running"
    told = json.loads(cli("status", "toy", "--json").stdout)
    assert (told["state"], [task["name"] for task in told["tasks"]]) == ("running", ["chief"])
    # A spec file stands for its run, wherever the verb is used.
    assert json.loads(cli("status", file, "--json").stdout)["name"] == "toy"
    assert "running" in cli("ls").stdout

    again = cli("up", file)
    assert again.returncode == 2
    assert "launcher logs -f toy" in again.stderr
    assert "launcher down toy" in again.stderr

    waited = cli("wait", "--timeout", "1s")
    assert waited.returncode == 124
    assert "it is running" in waited.stderr

    down = cli("down")
    assert (down.returncode, "toy is stopped" in down.stdout) == (0, True), down.stderr
    assert (tmp_path / "runs" / "toy" / "saved").is_file()
    assert cli("wait").returncode == 143
    assert cli("down").returncode == 0


def test_logs(cli: Cli, spec: Spec, tmp_path: Path) -> None:
    assert cli("up", spec("steps", "5", "0"), "--detach").returncode == 0
    assert cli("wait", "--timeout", "30s").returncode == 0
    eventually(has_written(tmp_path, '"done"'), "the last event")

    lines = cli("logs").stdout.splitlines()
    assert "chief | step 5/5  loss 0.2  accuracy 1  1,000 examples/s" in lines
    assert all(line.startswith("chief | ") for line in lines)
    assert len(cli("logs", "--tail", "2").stdout.splitlines()) == 2
    assert cli("logs", "--since", "2100-01-01T00:00:00Z").stdout == ""
    assert cli("logs", "--since", "1h").stdout.splitlines() == lines
    assert '"event":"progress"' in cli("logs", "--raw").stdout

    told = [json.loads(line) for line in cli("logs", "--json").stdout.splitlines()]
    assert [line["event"]["step"] for line in told if line.get("event", {}).get("event") == "progress"] == [1, 2, 3, 4, 5]
    stamped = cli("logs", "-t").stdout.splitlines()[0].split()[2]
    assert abs(datetime.fromisoformat(stamped).timestamp() - datetime.now(UTC).timestamp()) < 120

    for arguments in (["--role", "worker"], ["--index", "3"], ["--since", "soon"]):
        wrong = cli("logs", *arguments)
        assert (wrong.returncode, wrong.stdout) == (2, "")


def test_following_logs_ends_with_the_run(cli: Cli, spec: Spec, tmp_path: Path, environment: dict[str, str]) -> None:
    assert cli("up", spec("steps", "20", "0.1"), "--detach").returncode == 0
    process = subprocess.Popen(
        [*LAUNCHER, "logs", "-f"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")
    assert "step 20/20" in out


def test_wait_tells_the_result(cli: Cli, spec: Spec) -> None:
    assert cli("up", spec("fail"), "--detach").returncode == 0
    waited = cli("wait", "toy", "--json")
    assert waited.returncode == 1
    assert json.loads(waited.stdout)["state"] == "failed"
    shown = cli("status")
    assert "failed" in shown.stdout
    assert "exit code 1" in shown.stdout


def test_down_deletes_only_what_is_confirmed(cli: Cli, spec: Spec, tmp_path: Path) -> None:
    assert cli("up", spec("steps", "1", "0")).returncode == 0
    asked = cli("down", "--delete-data")
    assert asked.returncode == 2
    assert "--yes" in asked.stderr
    assert (tmp_path / "runs" / "toy" / "launcher").is_dir()
    assert cli("down", "--delete-data", "--yes").returncode == 0
    assert not (tmp_path / "runs" / "toy").exists()
    assert "no runs" in cli("ls").stdout


@pytest.mark.parametrize("verb", ["status", "logs", "wait", "down", "tensorboard"])
def test_no_run_at_all_says_how_to_start_one(verb: str, cli: Cli) -> None:
    done = cli(verb)
    assert done.returncode == 2
    assert "launcher up" in done.stderr
    assert cli(verb, "nosuch").returncode in {1, 2}


def test_which_run_must_be_said_when_there_are_two(cli: Cli, spec: Spec) -> None:
    assert cli("up", spec("steps", "1", "0")).returncode == 0
    assert cli("up", spec("steps", "1", "0"), "--set", "name=other").returncode == 0
    done = cli("status", "--json")
    assert done.returncode == 2
    told = json.loads(done.stderr)
    assert "2 runs" in told["error"]
    assert {"toy", "other"} <= set(told["remedy"].replace(",", "").split())


def test_runs_may_be_elsewhere(cli: Cli, spec: Spec, tmp_path: Path) -> None:
    done = cli("up", spec("steps", "1", "0"), "--runs", "elsewhere")
    assert done.returncode == 0
    assert (tmp_path / "elsewhere" / "toy").is_dir()
    assert not (tmp_path / "runs").exists()
    by_variable = cli("status", "--json", env={"LAUNCHER_RUNS": str(tmp_path / "elsewhere")})
    assert json.loads(by_variable.stdout)["name"] == "toy"
