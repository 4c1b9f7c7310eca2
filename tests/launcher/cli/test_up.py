"""`up` in the foreground without a terminal, with real runs of a small program."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from launcher.backend.model import Backend, PlannedRun
from launcher.cli.up import _foreground, _unwatched_notices
from launcher.errors import StartInterruptedError
from launcher.plan.models import Plan
from launcher.spec.models import ClusterSpec
from tests.launcher.cli.conftest import LAUNCHER, Cli, Spec
from tests.waiting import until


def test_success_is_plain_lines_a_summary_and_exit_code_0(cli: Cli, spec: Spec) -> None:
    result = cli("up", spec("steps", "30", "0.02"))
    assert result.returncode == 0, result.stderr
    assert "\x1b" not in result.stdout
    lines = result.stdout.splitlines()
    assert "chief | step 30/30  loss 0.03333  accuracy 1  1,000 examples/s" in lines
    # The first step, the last, and about one a second between.
    assert sum(line.startswith("chief | step ") for line in lines) <= 6
    summary = dict(line.split(maxsplit=1) for line in result.stdout.partition("toy succeeded")[2].splitlines()[1:])
    expected = {
        "steps": "30 of 30 (100%)",
        "speed": "1,000 examples/s",
        "training": "loss 0.03333  accuracy 1",
        "restarts": "none",
        "run": "runs/toy",
    }
    assert expected.items() <= summary.items()
    assert summary["checkpoint"] == "runs/toy/checkpoints/ckpt-30"


def test_failure_names_task_exit_code_last_error_the_log_and_the_command_to_continue(cli: Cli, spec: Spec) -> None:
    result = cli("up", spec("fail"), "--set", "limits.max_restarts=0", "--set", "env.WORDS=two words")
    assert result.returncode == 1
    assert "chief | about to fail" in result.stdout
    summary = result.stdout.partition("toy failed")[2]
    for fact in ("chief", "attempt 1", "exit code 1", "ValueError: the data is not there", "launcher logs toy --role chief"):
        assert fact in summary
    assert summary.count("ValueError: the data is not there") == 1
    assert "after a fix" in summary
    assert "launcher up toy.yaml --set limits.max_restarts=0 --set 'env.WORDS=two words'" in summary
    assert "continue with" not in summary
    shown = cli("logs", "toy", "--role", "chief")
    assert "chief | ValueError: the data is not there" in shown.stdout.splitlines()


def test_a_run_that_ended_early_says_so_and_shows_training_apart_from_evaluation(cli: Cli, spec: Spec) -> None:
    result = cli("up", spec("early"))
    assert result.returncode == 0
    summary = dict(line.strip().split("  ", 1) for line in result.stdout.partition("toy succeeded")[2].splitlines()[1:])
    facts = {name: value.strip() for name, value in summary.items()}
    assert facts["stopped early"] == "at step 2: accuracy did not improve on 0.75 in 1 evaluations"
    assert facts["steps"] == "2, of 100 at most"
    assert facts["training"] == "loss 0.5  accuracy 1"
    assert facts["evaluation"] == "accuracy 0.75  after step 2"
    status = cli("status").stdout
    assert "succeeded: stopped early at step 2: accuracy did not improve" in status
    assert "%" not in status
    row = cli("ls").stdout.splitlines()[1]
    assert "evaluation: accuracy 0.75" in row
    assert "/100" not in row
    as_json = json.loads(cli("status", "--json").stdout)
    assert (as_json["metrics"], as_json["metrics_of"], as_json["loss"]) == ({"accuracy": 0.75}, "evaluation", 0.5)


@pytest.mark.parametrize("job, code, state", [(["steps", "3", "0"], 0, "succeeded"), (["fail"], 1, "failed")])
def test_json_is_events_then_one_summary(job: list[str], code: int, state: str, cli: Cli, spec: Spec) -> None:
    result = cli("up", spec(*job), "--json")
    assert result.returncode == code
    events = [json.loads(line) for line in result.stdout.splitlines()]
    summary = events[-1]
    assert [event["event"] for event in events].count("summary") == 1
    assert (summary["event"], summary["name"], summary["state"], summary["exit_code"]) == ("summary", "toy", state, code)
    assert Path(summary["run_dir"]).is_dir()
    if code == 0:
        assert [event["step"] for event in events if event["event"] == "progress"] == [1, 2, 3]
        assert (summary["step"], summary["steps"], summary["metrics"], summary["checkpoint_step"]) == (3, 3, {"accuracy": 1.0}, 3)
    else:
        assert "about to fail" in [event["text"] for event in events if event["event"] == "output"]


def test_a_wrong_spec_starts_and_writes_nothing(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "toy.yaml").write_text("version: 1\nname: toy\nstrategi: single\ncommand: [python]\n")
    result = cli("up", "toy.yaml")
    assert result.returncode == 2
    assert result.stdout == ""
    assert "toy.yaml:3:1" in result.stderr
    assert not (tmp_path / "runs").exists()


def test_a_secret_comes_from_the_environment_of_up_and_is_in_no_file(cli: Cli, tmp_path: Path) -> None:
    program = ["python", "-c", "import os, sys; sys.exit(os.environ['TOKEN'][::-1] != '2retnuh')"]
    document = {"version": 1, "name": "toy", "command": program, "env": {"TOKEN": {"secret": "team", "key": "token"}}}
    (tmp_path / "toy.yaml").write_text(json.dumps({**document, "limits": {"max_restarts": 0}}))
    refused = cli("up", "toy.yaml")
    assert refused.returncode == 2
    assert "these secrets are not set in this environment, from which tasks take them: TOKEN (token of team)" in refused.stderr
    assert "export TOKEN=..." in refused.stderr
    assert not (tmp_path / "runs" / "toy").exists()
    result = cli("up", "toy.yaml", env={"TOKEN": "hunter2"})
    assert result.returncode == 0, result.stdout + result.stderr
    assert "toy is complete" in cli("up", "toy.yaml").stdout
    other = "# for the team\nexport OTHER=hunter3\nTOKEN='hunter2'  # quoted\n"
    for text, message in (
        (None, "cannot be read: No such file"),
        (other.replace("TOKEN", "hunter2"), "nor in"),
        ("TOKEN='hunter2", "env:1: "),
    ):
        if text is not None:
            (tmp_path / "team.env").write_text(text)
        (tmp_path / "file.yaml").write_text(
            json.dumps({**document, "name": "file", "env_file": "team.env", "tensorboard": {"host": "0.0.0.0"}})
        )
        refused = cli("up", "file.yaml")
        assert (refused.returncode, message in refused.stderr, "hunter2" in refused.stderr) == (2, True, False), refused.stderr
    (tmp_path / "team.env").write_text(other)
    from_file = cli("up", "file.yaml")
    assert from_file.returncode == 0, from_file.stdout + from_file.stderr
    valid = cli("validate", "file.yaml").stdout
    assert ("on Kubernetes: env_file is not read" in valid, "on Kubernetes: tensorboard.host left out" in valid) == (True, True), valid
    roles = {"chief": {}, "worker": {"env": {"TOKEN": {"secret": "other", "key": "token"}}}}
    (tmp_path / "two.yaml").write_text(json.dumps({**document, "name": "two", "strategy": "multi_worker_mirrored", "roles": roles}))
    refused = cli("up", "two.yaml", env={"TOKEN": "hunter2"})
    assert refused.returncode == 2
    assert "a variable cannot have two secrets: TOKEN (token of other, token of team)" in refused.stderr
    plan = cli("plan", "toy.yaml", "--task", "chief", env={"TOKEN": "hunter2"}).stdout
    assert '"secrets"' in plan
    files = [file for file in (tmp_path / "runs").rglob("*") if file.is_file()]
    assert files
    assert "hunter2" not in "".join(
        [result.stdout, result.stderr, from_file.stdout, from_file.stderr, plan, *(file.read_text(errors="replace") for file in files)]
    )


def test_a_second_up_of_a_complete_run_says_so_and_diff_shows_what_has_changed_since_its_start(cli: Cli, spec: Spec) -> None:
    file = spec("steps", "3", "0")
    missing = cli("diff", file, "--on", "local")
    assert (missing.returncode, "there is no run toy on local" in missing.stdout) == (1, True)
    assert cli("up", file).returncode == 0
    again = cli("up", file)
    assert again.returncode == 0
    assert "toy is complete" in again.stdout
    assert "--fresh" in again.stdout
    assert "step 1/3" not in again.stdout
    as_json = cli("up", file, "--json")
    assert json.loads(as_json.stdout)["state"] == "succeeded"

    same = cli("diff", file)  # it has been started here, and nowhere else
    assert (same.returncode, same.stdout) == (0, "")
    other = cli("diff", file, "--on", "local", "--set", "limits.max_restarts=3")
    assert other.returncode == 1
    assert other.stdout.splitlines()[1].split() == ["limits.max_restarts", "0", "3"]
    report = json.loads(cli("diff", file, "--on", "local", "--set", "limits.max_restarts=3", "--json").stdout)
    assert report["changes"] == [{"path": "limits.max_restarts", "was": 0, "is": 3}]


def test_a_changed_spec_needs_a_flag(cli: Cli, spec: Spec, tmp_path: Path) -> None:
    assert cli("up", spec("steps", "3", "0")).returncode == 0
    (tmp_path / "runs" / "toy" / "mine").write_text("precious")
    changed = spec("steps", "4", "0")
    refused = cli("up", changed)
    assert refused.returncode == 2
    assert "command" in refused.stderr
    assert "--resume" in refused.stderr
    assert "--fresh" in refused.stderr

    resumed = cli("up", changed, "--resume")
    assert resumed.returncode == 0
    assert "toy continues" in resumed.stdout
    assert "step 4/4" in resumed.stdout

    fresh = cli("up", changed, "--fresh")
    assert fresh.returncode == 0
    (old,) = old_runs(tmp_path)
    assert str(Path("runs", old.name)) in fresh.stdout
    assert (old / "mine").read_text() == "precious"
    assert not (tmp_path / "runs" / "toy" / "mine").exists()
    assert [run["name"] for run in json.loads(cli("ls", "--json").stdout)] == ["toy"]


def old_runs(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "runs").iterdir() if path.name != "toy"]


def test_fresh_renames_also_a_run_that_cannot_be_read(cli: Cli, spec: Spec, tmp_path: Path) -> None:
    file = spec("steps", "3", "0")
    assert cli("up", file).returncode == 0
    for lost in ("state.json", "spec.json"):
        before = old_runs(tmp_path)
        (tmp_path / "runs" / "toy" / "mine").write_text(f"precious, without {lost}")
        (tmp_path / "runs" / "toy" / "launcher" / lost).write_text("")
        assert cli("up", file, "--fresh").returncode == 0, lost
        (old,) = [path for path in old_runs(tmp_path) if path not in before]
        assert (old / "mine").read_text() == f"precious, without {lost}"
        assert not (tmp_path / "runs" / "toy" / "mine").exists()


def test_fresh_waits_until_tasks_of_a_killed_supervisor_have_saved_in_the_old_run(cli: Cli, spec: Spec, tmp_path: Path) -> None:
    assert cli("up", spec("slow", "2"), "--detach").returncode == 0
    state = tmp_path / "runs" / "toy" / "launcher" / "state.json"
    until("the chief to be up", lambda: "chief | up" in cli("logs", "toy").stdout, seen=lambda: cli("logs", "toy").stdout)
    os.kill(json.loads(state.read_text())["supervisor"]["pid"], signal.SIGKILL)
    assert cli("up", spec("steps", "30", "0.1"), "--fresh").returncode == 0
    (old,) = old_runs(tmp_path)
    assert (old / "saved").exists()
    assert not (tmp_path / "runs" / "toy" / "saved").exists()


def test_only_one_of_two_simultaneous_fresh_starts_succeeds(cli: Cli, spec: Spec, tmp_path: Path) -> None:
    assert cli("up", spec("steps", "3", "0")).returncode == 0
    file = spec("forever")
    with ThreadPoolExecutor() as executor:
        both = list(executor.map(lambda _: cli("up", file, "--fresh", "--detach"), range(2)))
    assert sorted(result.returncode for result in both) == [0, 2]
    assert any(
        message in "".join(result.stderr for result in both) for message in ("toy runs already", "another `launcher up` is starting toy")
    )
    assert len(old_runs(tmp_path)) == 1


def test_fresh_and_resume_exclude_each_other(cli: Cli, spec: Spec) -> None:
    result = cli("up", spec("steps", "3", "0"), "--fresh", "--resume")
    assert result.returncode == 2
    assert "exclude each other" in result.stderr


def start(
    tmp_path: Path, environment: dict[str, str], *arguments: str, last: str = "up", before: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    """Start `up` in the foreground and wait until its task has written a line."""
    process = subprocess.Popen(
        [*before, *LAUNCHER, "up", *arguments],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    output, written = process.stdout, list[str]()

    def read() -> None:
        for line in output:
            written.append(line)
            if line.strip().endswith(last):
                return

    reading = threading.Thread(target=read)
    reading.start()
    until(f"a line that ends with {last!r}", lambda: not reading.is_alive(), seen=lambda: written)
    assert written, "it ended before it wrote anything"
    assert written[-1].strip().endswith(last), written
    return process


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_a_signal_saves_and_stops(
    number: signal.Signals, code: int, cli: Cli, spec: Spec, tmp_path: Path, environment: dict[str, str]
) -> None:
    process = start(tmp_path, environment, spec("forever"))
    process.send_signal(number)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == code
    assert "stopping: asking your program to stop, up to 10 s; press Ctrl-C again to stop at once" in out
    assert "chief | saved" in out
    assert "toy stopped" in out
    assert "run it again" in out  # it had done no step
    assert (tmp_path / "runs" / "toy" / "saved").is_file()
    assert json.loads(cli("status", "--json").stdout)["state"] == "stopped"


def test_a_signal_during_the_start_is_announced_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def start(run: PlannedRun, *, is_cancelled: Callable[[], bool]) -> None:
        assert not is_cancelled()
        signal.raise_signal(signal.SIGINT)
        assert [is_cancelled(), is_cancelled()] == [True, True]
        raise StartInterruptedError(run.plan.name)

    backend = cast("Backend", SimpleNamespace(start=start))
    run = PlannedRun(Plan("toy", "docker", "single", "", (), "", 1.0, 1.0, None, ()), {})
    with pytest.raises(StartInterruptedError) as raised:
        _foreground(backend, run, tmp_path, [], as_json=False, started=lambda: None)
    assert raised.value.exit_code == 130
    assert capsys.readouterr().err == "notice: stopping the start\n"


def test_under_nohup_the_run_survives_the_end_of_the_terminal(cli: Cli, spec: Spec, tmp_path: Path, environment: dict[str, str]) -> None:
    ignoring = ("sh", "-c", 'trap "" HUP; exec "$@"', "sh")
    process = start(tmp_path, environment, spec("steps", "1000", "0.1"), last="examples/s", before=ignoring)
    process.send_signal(signal.SIGHUP)
    # The launcher has ignored the signal, and still shows the run's progress.
    assert process.stdout is not None
    for _ in range(2):
        assert "step" in process.stdout.readline()
    assert process.poll() is None
    assert json.loads(cli("status", "--json").stdout)["state"] == "running"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 143


def test_a_reader_that_closes_the_pipe_ends_the_run(cli: Cli, spec: Spec, tmp_path: Path, environment: dict[str, str]) -> None:
    process = start(tmp_path, environment, spec("steps", "1000", "0.1"), last="examples/s")
    assert process.stdout is not None
    process.stdout.close()
    process.wait(timeout=30)
    status = json.loads(cli("status", "--json").stdout)
    assert status["state"] in {"stopped", "failed"}
    assert all(task["pid"] is None for task in status["tasks"])


def test_notices_of_a_detached_run_on_a_cluster_name_the_work_that_is_not_done_without_an_attendant() -> None:
    def notices(**options: object) -> list[str]:
        head = {"version": 1, "name": "toy", "strategy": "single", "roles": {"chief": {}}, "train": {"workload": "mnist"}}
        return list(_unwatched_notices(ClusterSpec.model_validate({**head, "kubernetes": options}), "launcher wait toy"))

    (lost,) = notices()
    assert "only `launcher wait toy` replaces pods of lost nodes" in lost
    assert [notice.split(" deletes")[0] for notice in notices(ttl="1h")[1:]] == ["kubernetes.ttl"]
    assert notices(attendant=True, ttl="1h") == []
