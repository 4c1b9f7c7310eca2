"""Runs in the background: status, logs, wait, ls and down."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.cli.errors import INTERRUPTED
from launcher.cli.main import run
from launcher.runs.status import RunStatus, State
from tests.golden_messages import Golden
from tests.launcher.cli.conftest import Cli, Spec
from tests.waiting import until


def until_written(tmp_path: Path, text: str, seconds: float = 60) -> None:
    """Wait until the chief's log has a text; fail with the end of the log after `seconds`."""
    log = tmp_path / "runs" / "toy" / "launcher" / "tasks" / "chief.log"

    def written() -> str:
        return log.read_text() if log.exists() else ""

    until(f"{text!r} in {log}", lambda: text in written(), seconds, seen=lambda: written()[-2000:], every=0.1)


def test_a_run_in_the_background_from_up_to_down(cli: Cli, spec: Spec, tmp_path: Path) -> None:
    file = spec("forever")
    up = cli("up", file, "--detach")
    assert up.returncode == 0, up.stderr
    assert "launcher status toy" in up.stdout
    until_written(tmp_path, "up")

    status = cli("status")
    assert "\x1b" not in status.stdout
    assert "toy on local, single" in status.stdout
    row = next(line.split() for line in status.stdout.splitlines() if line.startswith("chief"))
    assert row[1] == "running"
    report = json.loads(cli("status", "toy", "--json").stdout)
    assert (report["state"], [task["name"] for task in report["tasks"]]) == ("running", ["chief"])
    # A spec file stands for its run, wherever the verb is used.
    assert json.loads(cli("status", file, "--json").stdout)["name"] == "toy"
    assert "running" in cli("ls").stdout

    again = cli("up", file)
    assert again.returncode == 2
    assert "launcher logs -f toy" in again.stderr
    assert "launcher down toy" in again.stderr

    waited = cli("wait", "--timeout", "1s", env={"LAUNCHER_RUNS": str(tmp_path / "runs")})
    assert waited.returncode == 124
    assert "it is running" in waited.stderr
    assert "`launcher down toy`" in waited.stderr

    down = cli("down")
    assert (down.returncode, "toy is stopped" in down.stdout) == (0, True), down.stderr
    assert (tmp_path / "runs" / "toy" / "saved").is_file()
    assert cli("wait").returncode == 143
    assert cli("down").returncode == 0


def test_logs_are_limited_and_filtered(cli: Cli, spec: Spec, tmp_path: Path) -> None:
    assert cli("up", spec("steps", "5", "0"), "--detach").returncode == 0
    assert cli("wait", "--timeout", "60s").returncode == 0
    until_written(tmp_path, '"done"')

    lines = cli("logs").stdout.splitlines()
    assert "chief | step 5/5  loss 0.2  accuracy 1  1,000 examples/s" in lines
    assert all(line.startswith("chief | ") for line in lines)
    assert len(cli("logs", "--tail", "2").stdout.splitlines()) == 2
    assert cli("logs", "--since", "2100-01-01T00:00:00Z").stdout == ""
    assert cli("logs", "--since", "1h").stdout.splitlines() == lines
    assert '"event":"progress"' in cli("logs", "--raw").stdout

    records = [json.loads(line) for line in cli("logs", "--json").stdout.splitlines()]
    assert [line["event"]["step"] for line in records if line.get("event", {}).get("event") == "progress"] == [1, 2, 3, 4, 5]
    timestamp = cli("logs", "-t").stdout.splitlines()[0].split()[2]
    assert abs(datetime.fromisoformat(timestamp).timestamp() - datetime.now(UTC).timestamp()) < 120

    steps = ["chief | step 4/5", "chief | step 5/5"]
    assert [line[:16] for line in cli("logs", "--grep", r"step [45]/", "--role", "chief").stdout.splitlines()] == steps
    assert [line[:16] for line in cli("logs", "--grep", r"step \d/5", "--tail", "2").stdout.splitlines()] == steps
    assert cli("logs", "--grep", "nowhere").stdout == ""
    assert cli("logs", "--tail", f"{10**20}").stdout.splitlines() == lines
    assert cli("logs", "--tail", f"{10**20}", "--grep", ".").stdout.splitlines() == lines

    for arguments in (["--role", "worker"], ["--index", "3"], ["--since", "soon"], ["--grep", "("]):
        wrong = cli("logs", *arguments)
        assert (wrong.returncode, wrong.stdout) == (2, "")


def test_logs_of_a_role_have_the_events_about_its_tasks(cli: Cli, tmp_path: Path) -> None:
    report = "events = os.fdopen(int(os.environ['TRAINER_EVENTS_FD']), 'w')\nfor n in range(4):\n    for task in ('worker-0', 'chief'):\n"
    report += "        event = {'event': 'progress', 'time': n, 'task': task, 'step': n, 'steps': 4, 'metrics': {}}\n"
    report += "        print(json.dumps(event, separators=(',', ':')), file=events)\n"
    program = f"import os\nrole = json.loads(os.environ['TF_CONFIG'])['task']['type']\nprint(role, 'writes')\nif role == 'chief':\n    exec({report!r})\n"
    command = json.dumps([sys.executable, "-c", f"import json\n{program}"])
    roles = "strategy: parameter_server\nroles: {chief: {}, ps: {}, worker: {}}\n"
    (tmp_path / "roles.yaml").write_text(f"version: 1\nname: roles\n{roles}command: {command}\n")
    assert cli("up", "roles.yaml").returncode == 0
    lines = [line for line in cli("logs", "roles", "--role", "worker").stdout.splitlines() if "step" in line or "writes" in line]
    assert sorted(lines) == [
        "worker-0 | step 0/4",
        "worker-0 | step 1/4",
        "worker-0 | step 2/4",
        "worker-0 | step 3/4",
        "worker-0 | worker writes",
    ]
    assert "worker" not in cli("logs", "roles", "--role", "chief").stdout
    assert cli("logs", "roles", "--role", "chief", "--tail", "2").stdout.splitlines() == ["chief | step 2/4", "chief | step 3/4"]
    followed = cli("logs", "roles", "--role", "worker", "--tail", "3", "-f").stdout.splitlines()
    assert len(followed) == 3
    assert cli("logs", "roles", "--role", "worker", "--tail", "0", "-f").stdout == ""


def test_following_logs_ends_with_the_run(cli: Cli, spec: Spec) -> None:
    assert cli("up", spec("steps", "20", "0.1"), "--detach").returncode == 0
    followed = cli("logs", "-f")
    assert (followed.returncode, followed.stderr) == (0, "")
    assert "step 20/20" in followed.stdout


def test_wait_reports_the_result(cli: Cli, spec: Spec) -> None:
    assert cli("up", spec("fail"), "--detach").returncode == 0
    waited = cli("wait", "toy", "--json")
    assert waited.returncode == 1
    assert json.loads(waited.stdout)["state"] == "failed"
    shown = cli("status")
    assert "failed" in shown.stdout
    assert "exit code 1" in shown.stdout


def test_down_of_a_run_that_has_ended_reports_the_removed_objects_and_deletes_only_what_is_confirmed(
    cli: Cli, spec: Spec, tmp_path: Path
) -> None:
    assert cli("up", spec("steps", "1", "0")).returncode == 0
    message = "toy has succeeded and does not run; there was nothing to remove; its data stays in runs/toy\n"
    assert cli("down").stdout == message
    as_json = cli("down", "--json")
    report = json.loads(as_json.stdout)
    expected = {"name": "toy", "state": "succeeded", "ran": False, "checkpoint_step": 1, "removed": {}, "deleted": False}
    assert report == expected | {"run_dir": str(tmp_path / "runs" / "toy")}
    refused = cli("down", "--delete-data")
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    assert (tmp_path / "runs" / "toy" / "launcher").is_dir()
    deleted = cli("down", "--json", "--delete-data", "--yes")
    assert (deleted.returncode, json.loads(deleted.stdout)["deleted"]) == (0, True)
    assert not (tmp_path / "runs" / "toy").exists()
    assert "no runs" in cli("ls").stdout


def test_of_several_runs_one_must_be_named_and_down_of_all_finished_removes_no_recent_or_live_one(
    cli: Cli, spec: Spec, tmp_path: Path
) -> None:
    assert cli("up", spec("steps", "1", "0")).returncode == 0
    assert "did you mean status? " in cli("statu").stderr
    missed = cli("status", "toi")
    assert (missed.returncode, "did you mean toy? " in missed.stderr) == (2, True), missed.stderr

    assert cli("up", spec("steps", "1", "0"), "--set", "name=other").returncode == 0
    unnamed = cli("status", "--json")
    assert unnamed.returncode == 2
    report = json.loads(unnamed.stderr)
    assert "2 runs" in report["error"]
    assert {"toy", "other"} <= set(report["remedy"].replace(",", "").split())

    assert cli("up", spec("steps", "1000", "0.1"), "--set", "name=runs", "--detach").returncode == 0
    assert "no finished run older than 7d" in cli("down", "--finished", "--older", "7d").stdout
    refused = cli("down", "--finished", "--delete-data")
    assert refused.returncode == 2
    assert "other, toy" in refused.stderr
    result = cli("down", "--finished", "--delete-data", "--yes", "--json")
    removed = json.loads(result.stdout)
    assert [(one["name"], one["state"], one["deleted"]) for one in removed] == [("other", "succeeded", True), ("toy", "succeeded", True)]
    assert [path.name for path in (tmp_path / "runs").iterdir() if not path.name.startswith(".")] == ["runs"]


@pytest.mark.parametrize(
    "arguments", [("toy", "--finished"), ("--older", "7d"), ("--finished", "--older", "week"), ("--finished", "--now")]
)
def test_down_of_many_and_of_one_exclude_each_other(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["down", *arguments]) == 2
    golden(capsys.readouterr().err.rstrip())


def test_down_of_many_asks_once_what_to_delete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    done = RunStatus("a", "local", State.SUCCEEDED, ended=1.0)
    runs = [(SimpleNamespace(), done), (SimpleNamespace(), replace(done, name="b"))]
    questions: list[str] = []
    monkeypatch.setattr("launcher.cli.backends.known_runs", lambda *_: runs)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("typer.confirm", lambda question, **_: questions.append(question))
    assert run(["down", "--finished", "--delete-data", "--runs", str(tmp_path)]) == INTERRUPTED
    golden(*questions)


def test_wait_shows_each_notice_as_soon_as_it_comes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[str] = []

    def finish(_: str) -> Iterator[str]:
        for notice in ("a message is being sent", "it was sent"):
            yield notice
            shown.append(capsys.readouterr().err)

    status = RunStatus("toy", "kubernetes", State.SUCCEEDED)
    backend = SimpleNamespace(status=lambda _: status, reconcile=lambda _: [], finish=finish)
    monkeypatch.setattr("launcher.cli.backends.open_run", lambda *_, **__: (backend, "toy"))
    assert run(["wait", "toy"]) == 0
    assert shown == ["notice: a message is being sent\n", "notice: it was sent\n"]


@pytest.mark.parametrize("verb", ["status", "logs", "wait", "down", "tensorboard"])
def test_an_error_without_any_run_says_how_to_start_one(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([verb]) == 2
    assert "launcher up" in capsys.readouterr().err
    assert run([verb, "nosuch"]) in {1, 2}


def test_runs_may_be_elsewhere(cli: Cli, spec: Spec, tmp_path: Path) -> None:
    result = cli("up", spec("steps", "1", "0"), "--runs", "elsewhere")
    assert result.returncode == 0
    assert (tmp_path / "elsewhere" / "toy").is_dir()
    assert not (tmp_path / "runs").exists()
    by_variable = cli("status", "--json", env={"LAUNCHER_RUNS": str(tmp_path / "elsewhere")})
    assert json.loads(by_variable.stdout)["name"] == "toy"
