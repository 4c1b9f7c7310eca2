"""Whole runs of small programs on this machine: how they start, end, are restarted, stopped, and told of."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.backend.local import locks, processes
from launcher.backend.model import State
from launcher.errors import LauncherError, UsageError
from launcher.plan.models import Plan
from tests.launcher.backend.local.running import Runs, until

FOREVER = "print('up'); time.sleep(60)"
# Ends as the trainer does: saves when asked, says when, and exits 143.
SAVES = """
def save(*_):
    print(f'saved {time.time()}', flush=True)
    os._exit(143)
signal.signal(signal.SIGTERM, save)
print('up', flush=True)
time.sleep(60)
"""
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


def event(kind: str, **fields: object) -> str:
    return f"print({json.dumps(json.dumps({'event': kind, **fields}, separators=(',', ':')))}, flush=True)\n"


def test_a_run_succeeds_when_its_chief_does_and_the_servers_end_with_it(runs: Runs) -> None:
    runs.start({"chief": "print('hello'); time.sleep(0.3)", "ps-0": FOREVER, "worker-0": FOREVER}, grace_period=0.5)
    ended = runs.wait()
    assert (ended.state, ended.reason) == (State.SUCCEEDED, "")
    assert {task.name: task.state for task in ended.tasks} == dict.fromkeys(("chief", "ps-0", "worker-0"), State.SUCCEEDED)
    assert runs.lines() == ["hello"]
    assert runs.processes() == []


def test_a_task_that_fails_for_good_fails_the_run_and_is_named_with_its_last_words(runs: Runs) -> None:
    runs.start({"chief": FOREVER, "worker-0": "print('fine'); print('no such layer: dense_9\\n', file=sys.stderr); sys.exit(3)"})
    ended = runs.wait()
    assert ended.state == State.FAILED
    for part in ("worker-0", "attempt 1", "exit code 3", "no such layer: dense_9"):
        assert part in ended.reason
    assert {task.name: (task.state, task.exit_code) for task in ended.tasks}["worker-0"] == (State.FAILED, 3)
    assert runs.processes() == []


def test_a_failed_task_is_started_again_after_a_delay_and_its_causes_are_kept(runs: Runs, tmp_path: Path) -> None:
    count = f"n = len(os.listdir({str(tmp_path)!r})); open({str(tmp_path)!r} + f'/try{{n}}', 'w').close()\n"
    before = len(list(tmp_path.iterdir())) + 1  # the directory of runs
    began = time.time()
    runs.start({"chief": count + f"print('try', n)\nif n < {before} + 1: sys.exit(75 if n == {before} else 0)"}, max_restarts=3)
    ended = runs.wait()
    (chief,) = ended.tasks
    assert ended.state == State.SUCCEEDED
    assert [(restart.attempt, restart.exit_code) for restart in chief.restarts] == [(1, 75)]
    assert "a peer was lost" in chief.restarts[0].cause
    assert time.time() - began >= 1
    assert len(runs.lines()) == 2


def test_restarts_are_limited(runs: Runs) -> None:
    runs.start({"chief": "sys.exit(1)"}, max_restarts=1)
    ended = runs.wait()
    assert ended.state == State.FAILED
    assert "attempt 2" in ended.reason
    assert len(ended.tasks[0].restarts) == 1


def test_a_wrong_configuration_is_never_started_again(runs: Runs) -> None:
    began = time.time()
    runs.start({"chief": "print('train.steps is -1'); sys.exit(2)", "ps-0": SAVES}, max_restarts=9)
    ended = runs.wait()
    assert ended.state == State.FAILED
    assert "train.steps is -1" in ended.reason
    assert ended.tasks[0].restarts == ()
    assert time.time() - began < 3


def test_being_asked_to_stop_by_somebody_else_does_not_count(runs: Runs, tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    runs.start({"chief": f"if not os.path.exists({mark!r}): open({mark!r}, 'w').close(); sys.exit(143)\nprint('again')"}, max_restarts=0)
    assert runs.wait().state == State.SUCCEEDED
    assert runs.lines() == ["again"]


def test_restarts_that_do_not_count_leave_those_that_do_when_a_program_cannot_be_started(runs: Runs, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\nmv "$0" "$0.gone"\nexit 143\n')
    program.chmod(0o755)
    plan = runs.plan({"chief": "pass"}, max_restarts=1)
    gone = dataclasses.replace(plan, tasks=(dataclasses.replace(plan.tasks[0], command=(str(program),)),))
    runs.backend.start(gone, {}, detach=True)
    ended = runs.wait()
    assert (ended.state, len(ended.tasks[0].restarts)) == (State.FAILED, 2)
    assert "could not be started" in ended.reason


def test_restarts_in_place_are_counted_with_the_others(runs: Runs) -> None:
    inner = event("restarting", attempt=2, restarts=2, exit_code=137, cause="killed by SIGKILL", delay=1)
    runs.start({"chief": inner + "sys.exit(1)"}, max_restarts=2)
    ended = runs.wait()
    assert ended.state == State.FAILED  # both restarts were used up in place
    assert [(restart.exit_code, restart.cause) for restart in ended.tasks[0].restarts] == [(137, "killed by SIGKILL")]


def test_peers_that_were_done_come_back_when_one_has_to_go_back_to_the_checkpoint(runs: Runs, tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    chief = f"time.sleep(0.5)\nif not os.path.exists({mark!r}): open({mark!r}, 'w').close(); sys.exit(75)"
    programs = {"chief": chief, "worker-0": "print('done')"}
    runs.start(programs, scope="all", max_restarts=2, strategy="multi_worker_mirrored")
    assert runs.wait().state == State.SUCCEEDED
    assert runs.lines(task="worker-0") == ["done", "done"]


def test_a_peer_that_is_done_just_after_another_went_back_comes_back_too(runs: Runs, tmp_path: Path) -> None:
    ends = str(tmp_path / "ends")
    goes_back = event("restarting", attempt=2, restarts=1, exit_code=75, cause="a peer was lost", detail="", delay=1.0)
    needs_it = f"while not os.path.exists({ends!r}) or len(open({ends!r}).readlines()) < 2: time.sleep(0.05)"
    programs = {"chief": goes_back + needs_it, "worker-0": f"time.sleep(0.5)\nprint('done', file=open({ends!r}, 'a'))"}
    runs.start(programs, scope="all", max_restarts=2, strategy="multi_worker_mirrored")
    assert runs.wait().state == State.SUCCEEDED


def test_the_deadline_ends_a_run(runs: Runs) -> None:
    runs.start({"chief": SAVES}, deadline=0.5)
    ended = runs.wait()
    assert ended.state == State.FAILED
    assert "deadline of 0.5 s" in ended.reason
    assert any(line.startswith("saved") for line in runs.lines())


def test_training_that_never_starts_fails_and_says_who_waits_for_whom(runs: Runs) -> None:
    waiting = event("waiting", missing=[{"task": "ps-0", "address": "x:1", "reason": "refused"}], seconds=1, timeout=2)
    env = {"TRAINER_SETTINGS": json.dumps({"train": {}})}
    runs.start({"chief": waiting + "time.sleep(60)"}, start_timeout=1.0, env=env)
    until(lambda: runs.backend.status("run").tasks[0].reason == "waiting for ps-0")
    assert runs.backend.status("run").state == State.PENDING
    ended = runs.wait()
    assert ended.state == State.FAILED
    assert "start timeout of 1 s: chief is waiting for ps-0" in ended.reason


def test_training_that_has_started_is_not_timed_out(runs: Runs) -> None:
    env = {"TRAINER_SETTINGS": json.dumps({"train": {}})}
    runs.start({"chief": event("ready", seconds=1) + "time.sleep(1.5)"}, start_timeout=1.0, env=env)
    assert runs.wait().state == State.SUCCEEDED


def test_progress_events_show_in_the_status(runs: Runs) -> None:
    metrics = {"accuracy": 0.5}
    chief = (
        event("progress", task="chief", step=40, steps=100, loss=0.5, metrics=metrics, examples_per_second=200.0, seconds_per_step=0.1)
        + event("progress", task="worker-0", step=40, steps=100, local_step=19, examples_per_second=90.0)
        + event("checkpoint", task="chief", step=30, path="checkpoints/ckpt-30", seconds=0.1)
        + event("evaluated", task="chief", step=30, metrics={"accuracy": 0.9}, seconds=1)
        + "time.sleep(60)"
    )
    runs.start({"chief": chief, "worker-0": FOREVER})
    until(lambda: runs.backend.status("run").metrics == {"accuracy": 0.9})
    status = runs.backend.status("run")
    assert (status.step, status.steps, status.loss) == (40, 100, 0.5)
    assert status.eta == pytest.approx(6)
    assert (status.checkpoint, status.checkpoint_step) == ("checkpoints/ckpt-30", 30)
    worker = status.tasks[1]
    assert (worker.step, worker.local_step, worker.examples_per_second) == (40, 19, 90.0)
    runs.backend.stop("run")
    stopped = runs.backend.status("run")
    assert stopped.reason == "asked to stop; the last checkpoint is of step 30"
    assert stopped.eta is None


def test_output_that_only_looks_like_events_does_no_harm(runs: Runs) -> None:
    runs.start({"chief": 'print(\'{"event":"progress","step":"x","metrics":3}\'); print(\'{"event":"progress"\')'})
    ended = runs.wait()
    assert (ended.state, ended.step) == (State.SUCCEEDED, None)
    assert len(runs.lines()) == 2


def test_a_stop_lets_the_chief_save_before_the_servers_are_asked(runs: Runs) -> None:
    slow = SAVES.replace("os._exit", "time.sleep(0.5); os._exit")
    runs.start({"chief": slow, "ps-0": SAVES, "worker-0": SAVES})
    for task in ("chief", "ps-0", "worker-0"):
        runs.until_line("up", task=task)
    runs.backend.stop("run")
    status = runs.backend.status("run")
    assert (status.state, status.reason) == (State.STOPPED, "asked to stop")
    saved = {task: float(runs.lines(task=task)[-1].removeprefix("saved ")) for task in ("chief", "ps-0", "worker-0")}
    assert min(saved["ps-0"], saved["worker-0"]) >= saved["chief"] + 0.4
    assert runs.processes() == []
    runs.backend.stop("run")  # again: nothing happens


def test_who_does_not_stop_is_killed_with_all_it_started_after_the_grace_period(runs: Runs) -> None:
    child = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], process_group=0)\n"
    runs.start({"chief": child + STUBBORN}, grace_period=0.6)
    runs.until_line("up")
    assert len(runs.processes()) == 2
    began = time.time()
    runs.backend.stop("run")
    assert 0.5 < time.time() - began < 4
    assert runs.processes() == []
    assert "did not stop within 0.6 s" in runs.backend.status("run").tasks[0].reason


def test_stopping_at_once_kills(runs: Runs) -> None:
    runs.start({"chief": STUBBORN, "ps-0": STUBBORN}, grace_period=30.0)
    runs.until_line("up")
    began = time.time()
    runs.backend.stop("run", now=True)
    assert time.time() - began < 3
    assert runs.backend.status("run").state == State.STOPPED
    assert runs.processes() == []


def test_a_second_sigterm_to_the_supervisor_kills(runs: Runs) -> None:
    runs.start({"chief": STUBBORN}, grace_period=30.0)
    runs.until_line("up")
    os.kill(runs.supervisor(), signal.SIGTERM)
    until(lambda: runs.backend.status("run").reason == "asked to stop")
    os.kill(runs.supervisor(), signal.SIGTERM)
    assert runs.wait(seconds=5).state == State.STOPPED


def test_what_a_task_leaves_behind_is_gone_before_it_is_started_again(runs: Runs) -> None:
    child = "import time; time.sleep(60)"
    runs.start({"chief": f"print(subprocess.Popen([sys.executable, '-c', {child!r}]).pid); sys.exit(1)"}, max_restarts=1)
    until(lambda: runs.backend.status("run").tasks[0].state == State.RESTARTING)
    assert processes.identify(int(runs.lines()[0])) is None
    runs.backend.stop("run")


def test_a_killed_supervisor_leaves_nothing_and_the_run_can_be_started_again(runs: Runs, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    saves = SAVES.replace("os._exit", f"open({str(saved)!r}, 'w').close(); os._exit")
    runs.start({"chief": saves, "ps-0": STUBBORN}, supervised=True, env={"TRAINER_EVENTS": "json"}, grace_period=2.0)
    runs.until_line("up")
    runs.until_line("up", task="ps-0")
    assert len(runs.processes()) >= 4
    os.kill(runs.supervisor(), signal.SIGKILL)
    until(lambda: runs.backend.status("run").state == State.INTERRUPTED)
    assert "supervisor was killed" in runs.backend.status("run").reason
    runs.backend.stop("run")  # waits for those that save, kills the stubborn
    assert runs.processes() == []
    assert saved.exists()
    assert [status.state for status in runs.backend.runs()] == [State.INTERRUPTED]
    runs.start({"chief": "print('second life')"})
    assert runs.wait().state == State.SUCCEEDED
    assert runs.lines()[-1] == "second life"


def test_without_its_supervisor_every_task_leaves_by_itself_those_that_save_first(runs: Runs, tmp_path: Path) -> None:
    def saves(task: str, seconds: float) -> str:
        return SAVES.replace("os._exit", f"time.sleep({seconds}); open({str(tmp_path / task)!r}, 'w').write(str(time.time())); os._exit")

    programs = {"chief": saves("chief", 0.5), "worker-0": saves("worker-0", 0), "ps-0": saves("ps-0", 0)}
    runs.start(programs, supervised=True, env={"TRAINER_EVENTS": "json"})
    for task in programs:
        runs.until_line("up", task=task)
    os.kill(runs.supervisor(), signal.SIGKILL)
    until(lambda: not runs.processes(), 5)
    assert runs.backend.status("run").reason == "the launcher's supervisor was killed"
    saved = {task: float((tmp_path / task).read_text()) for task in programs}
    assert saved["chief"] < min(saved["worker-0"], saved["ps-0"])


def test_starting_again_first_ends_what_a_killed_supervisor_left(runs: Runs) -> None:
    runs.start({"chief": STUBBORN}, grace_period=0.3)
    runs.until_line("up")
    (pid,) = runs.processes()
    os.kill(runs.supervisor(), signal.SIGKILL)
    until(lambda: runs.backend.status("run").state == State.INTERRUPTED)
    assert f"chief (pid {pid})" in runs.backend.status("run").reason
    runs.start({"chief": FOREVER})
    assert pid not in runs.processes()
    assert runs.backend.status("run").state == State.RUNNING
    runs.backend.stop("run")


def test_what_cannot_be_ended_is_told_and_not_forgotten(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.start({"chief": STUBBORN}, grace_period=0.1)
    runs.until_line("up")
    (pid,) = runs.processes()
    os.kill(runs.supervisor(), signal.SIGKILL)
    until(lambda: runs.backend.status("run").state == State.INTERRUPTED)
    with monkeypatch.context() as patched:
        patched.setattr(processes, "kill_session", lambda _leader: False)  # as for a process that another user owns
        with pytest.raises(LauncherError, match=rf"cannot be ended: chief \(pid {pid}\)"):
            runs.backend.stop("run")
    runs.backend.stop("run")
    assert runs.processes() == []


def test_a_run_in_the_foreground_ends_with_the_launcher_that_waits(runs: Runs, foreground: Callable[[Plan], subprocess.Popen[str]]) -> None:
    launcher = foreground(runs.plan({"chief": SAVES, "ps-0": FOREVER}))
    runs.until_line("up")
    launcher.kill()
    ended = runs.wait(seconds=5)
    assert (ended.state, ended.reason) == (State.STOPPED, "the launcher that ran it in the foreground is gone")
    assert any(line.startswith("saved") for line in runs.lines())
    assert runs.processes() == []


def test_a_detached_run_outlives_the_launcher_and_its_terminal(runs: Runs) -> None:
    runs.start({"chief": "print(os.getsid(0) == os.getpid()); time.sleep(0.5)"})
    until(lambda: runs.lines() == ["True"])
    assert os.getsid(runs.supervisor()) != os.getsid(0)
    assert runs.wait().state == State.SUCCEEDED


def test_a_run_that_runs_is_not_started_twice(runs: Runs) -> None:
    runs.start({"chief": FOREVER})
    with pytest.raises(UsageError, match="run is already running") as error:
        runs.start({"chief": "print('never')"})
    assert "launcher down run" in error.value.remedy
    with pytest.raises(UsageError, match="is running; its data was not deleted"):
        runs.backend.delete("run")
    assert runs.backend.status("run").state == State.RUNNING
    runs.backend.stop("run")


def test_two_runs_at_once_share_nothing(runs: Runs) -> None:
    show = "import json; print(os.environ['TF_CONFIG']); time.sleep(1)"
    runs.start({"chief": show, "worker-0": show}, name="one")
    runs.start({"chief": show, "worker-0": show}, name="two")
    addresses = {task.address for name in ("one", "two") for task in runs.backend.status(name).tasks}
    assert len(addresses) == 4
    assert runs.wait("one").state == runs.wait("two").state == State.SUCCEEDED
    told = json.loads(runs.lines("one", "worker-0")[0])
    assert told["cluster"] == {"chief": [_address(runs, "one", 0)], "worker": [_address(runs, "one", 1)]}
    assert told["task"] == {"type": "worker", "index": 0}
    assert [status.name for status in runs.backend.runs()] == ["two", "one"]


def _address(runs: Runs, name: str, task: int) -> str:
    return runs.backend.status(name).tasks[task].address


def test_the_port_of_a_task_is_its_own_to_listen_on_and_no_one_elses(runs: Runs) -> None:
    listen = """
import json, socket
address = json.loads(os.environ['TF_CONFIG'])['cluster']['chief'][0]
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does
server.bind(('', int(address.split(':')[1])))
server.listen()
print('up', flush=True)
server.accept()[0].sendall(b'chief')
"""
    runs.start({"chief": "time.sleep(0.5)" + listen})
    host, port = _address(runs, "run", 0).split(":")
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", int(port)))
    runs.until_line("up")
    with socket.create_connection((host, int(port)), 5) as client:
        assert client.recv(10) == b"chief"
    assert runs.wait().state == State.SUCCEEDED


def test_fifty_tasks(runs: Runs) -> None:
    began = time.time()
    runs.start({"chief": "time.sleep(2)"} | {f"worker-{index}": FOREVER for index in range(49)})
    assert len({task.address for task in runs.backend.status("run").tasks}) == 50
    assert len(runs.processes()) >= 45
    runs.backend.stop("run", now=True)
    assert runs.processes() == []
    assert time.time() - began < 15


def test_much_output_is_kept_whole_while_the_run_answers(runs: Runs) -> None:
    runs.start({"chief": "for i in range(200000): print('line', i)"})
    runs.wait(seconds=30)
    lines = runs.lines()
    assert len(lines) == 200_000
    assert lines[-1] == "line 199999"


def test_logs_are_followed_to_the_end_in_order_of_time(runs: Runs) -> None:
    runs.start(
        {"chief": "print('a'); time.sleep(0.6); print('c')", "worker-0": "time.sleep(0.3); print('b'); time.sleep(60)"}, grace_period=0.2
    )
    followed = [(line.task, line.text) for line in runs.backend.logs("run", tasks=[], follow=True) if "---" not in line.text]
    assert followed == [("chief", "a"), ("worker-0", "b"), ("chief", "c")]
    assert runs.backend.status("run").state == State.SUCCEEDED


def test_logs_are_kept_when_a_run_is_started_again(runs: Runs) -> None:
    for text in ("first", "second"):
        runs.start({"chief": f"print('{text}')"})
        runs.wait()
        locks.wait_released(runs.layout().lock, timeout=5)
    every = [line.text for line in runs.backend.logs("run", tasks=[], follow=False)]
    assert every == ["--- launcher: run run starts", "first", "--- launcher: run run starts", "second"]


def test_wrong_names_are_told(runs: Runs) -> None:
    with pytest.raises(UsageError, match="there is no run mnist"):
        runs.backend.status("mnist")
    with pytest.raises(UsageError, match="is no name of a run"):
        runs.backend.delete("../mnist")
    runs.start({"chief": "pass"})
    with pytest.raises(UsageError) as error:
        runs.backend.logs("run", tasks=["worker-3"], follow=False)
    assert "its tasks are chief" in error.value.remedy
    runs.wait()


def test_data_is_deleted_once_the_run_has_ended(runs: Runs) -> None:
    runs.start({"chief": "pass"})
    runs.wait()
    locks.wait_released(runs.layout().lock, timeout=5)
    runs.backend.delete("run")
    assert not (runs.directory / "run").exists()
    assert runs.backend.runs() == []


def test_a_program_that_is_not_there_is_told_when_starting(runs: Runs) -> None:
    plan = runs.plan({"chief": "pass", "worker-0": "pass"})
    broken = dataclasses.replace(plan, tasks=(plan.tasks[0], dataclasses.replace(plan.tasks[1], command=("/no/such/program",))))
    with pytest.raises(LauncherError, match="/no/such/program") as error:
        runs.backend.start(broken, {}, detach=True)
    assert error.value.remedy
    assert runs.backend.status("run").state == State.FAILED
    assert runs.processes() == []
    assert not runs.layout().spec.exists()


def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    stuck = Runs(tmp_path / "runs")
    with pytest.raises(LauncherError, match="Not a directory") as error:
        stuck.start({"chief": "pass"})
    assert "choose another directory" in error.value.remedy


def test_an_interrupted_run_tells_the_checkpoint_that_its_chief_saved_after_all(runs: Runs) -> None:
    runs.start({"chief": event("progress", step=40, steps=100) + "print('up'); time.sleep(60)"}, grace_period=0.1)
    runs.until_line("up")
    os.kill(runs.supervisor(), signal.SIGKILL)
    summary = {"step": 47, "steps": 100, "metrics": {"accuracy": 0.5}, "checkpoint": "checkpoints/ckpt-47"}
    runs.layout().summary.write_text(json.dumps(summary))
    until(lambda: runs.backend.status("run").state == State.INTERRUPTED)
    status = runs.backend.status("run")
    assert (status.step, status.checkpoint_step, status.metrics) == (47, 47, {"accuracy": 0.5})
    runs.backend.stop("run", now=True)


def test_the_spec_is_stored_as_it_was_started(runs: Runs) -> None:
    runs.start({"chief": "pass"})
    assert json.loads(runs.layout().spec.read_text()) == {"name": "run"}
    runs.wait()


def test_the_supervisor_needs_neither_tensorflow_nor_what_draws_on_terminals(runs: Runs) -> None:
    runs.start({"chief": FOREVER})
    maps = Path(f"/proc/{runs.supervisor()}/maps")
    if maps.exists():
        assert "tensorflow" not in maps.read_text()
        assert "pydantic" not in maps.read_text()
    assert processes.identify(runs.supervisor()) is not None
    runs.backend.stop("run")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processor time is told in hundredths of a second by /proc alone")
def test_a_supervisor_with_nothing_to_do_uses_no_processor(runs: Runs) -> None:
    runs.start({"chief": FOREVER, "worker-0": FOREVER})
    runs.until_line("up")
    before = _processor_seconds(runs.supervisor())
    time.sleep(1.5)
    assert _processor_seconds(runs.supervisor()) - before < 0.1
    runs.backend.stop("run")


def _processor_seconds(pid: int) -> float:
    """Return the user and system time of a process: fields 14 and 15 of proc(5)'s stat, in clock ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
