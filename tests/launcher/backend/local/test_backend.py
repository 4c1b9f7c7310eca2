"""Whole runs of small programs on this machine: how they start, end and are restarted."""

import dataclasses
import json
import os
import socket
import time
from pathlib import Path

import pytest

from launcher.backend.model import PlannedRun
from launcher.errors import UsageError
from launcher.runs import process_identity
from launcher.runs.status import State
from tests.launcher.backend.local.running import FOREVER, SAVES, Runs, event


def test_a_run_succeeds_when_its_chief_does_and_all_others_end_with_it(runs: Runs) -> None:
    others = ("ps-0", "worker-0", "evaluator")
    runs.start({"chief": "print('hello'); time.sleep(0.3)", **dict.fromkeys(others, FOREVER)}, grace_period=0.5)
    ended = runs.wait()
    assert (ended.state, ended.reason) == (State.SUCCEEDED, "")
    assert {task.name: task.state for task in ended.tasks} == dict.fromkeys(("chief", *others), State.SUCCEEDED)
    assert runs.lines() == ["hello"]
    assert runs.processes() == []


def test_a_task_that_fails_permanently_fails_the_run_and_is_named_with_its_last_line(runs: Runs) -> None:
    runs.start({"chief": FOREVER, "worker-0": "print('fine'); print('no such layer: dense_9\\n', file=sys.stderr); sys.exit(3)"})
    ended = runs.wait()
    assert ended.state == State.FAILED
    for part in ("worker-0", "attempt 1", "exit code 3", "no such layer: dense_9"):
        assert part in ended.reason
    assert {task.name: (task.state, task.exit_code) for task in ended.tasks}["worker-0"] == (State.FAILED, 3)
    assert runs.processes() == []


def test_a_failed_task_is_restarted_after_a_delay_and_the_cause_is_recorded(runs: Runs, tmp_path: Path) -> None:
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


def test_a_task_restarts_after_a_lost_peer_but_not_after_a_final_exit_code(runs: Runs, tmp_path: Path) -> None:
    count = f"path = {str(tmp_path / 'count')!r}\nn = os.path.exists(path)\nopen(path, 'w').close()\nsys.exit(7 if n else 75)"
    plan = runs.plan({"chief": count}, max_restarts=3)
    chief = plan.tasks[0]
    by_code = dataclasses.replace(chief, restart=dataclasses.replace(chief.restart, when="exit_code"))
    runs.backend.start(PlannedRun(dataclasses.replace(plan, tasks=(by_code,)), {"name": plan.name}))
    ended = runs.wait()
    assert (ended.state, ended.tasks[0].exit_code) == (State.FAILED, 7)
    assert [restart.exit_code for restart in ended.tasks[0].restarts] == [75]


def test_a_task_with_a_wrong_configuration_is_never_restarted(runs: Runs) -> None:
    runs.start({"chief": "print('train.steps is -1'); sys.exit(2)", "ps-0": SAVES}, max_restarts=9)
    ended = runs.wait()
    assert ended.state == State.FAILED
    assert "train.steps is -1" in ended.reason
    assert ended.tasks[0].restarts == ()
    assert runs.lines(task="chief") == ["train.steps is -1"]


def test_a_stop_that_the_launcher_did_not_request_does_not_count_as_a_restart(runs: Runs, tmp_path: Path) -> None:
    marker = str(tmp_path / "marker")
    runs.start(
        {"chief": f"if not os.path.exists({marker!r}): open({marker!r}, 'w').close(); sys.exit(143)\nprint('again')"}, max_restarts=0
    )
    assert runs.wait().state == State.SUCCEEDED
    assert runs.lines() == ["again"]


def test_restarts_that_do_not_count_use_up_none_of_those_for_a_program_that_cannot_be_started(runs: Runs, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\nmv "$0" "$0.moved"\nexit 143\n')
    program.chmod(0o755)
    plan = runs.plan({"chief": "pass"}, max_restarts=1)
    moves_itself = dataclasses.replace(plan, tasks=(dataclasses.replace(plan.tasks[0], command=(str(program),)),))
    runs.backend.start(PlannedRun(moves_itself, {}))
    ended = runs.wait()
    assert (ended.state, len(ended.tasks[0].restarts)) == (State.FAILED, 2)
    assert "could not be started" in ended.reason


def test_restarts_in_place_are_counted_with_the_others(runs: Runs) -> None:
    inner = event("restarting", attempt=2, restarts=2, exit_code=137, cause="killed by SIGKILL", delay=1)
    runs.start({"chief": inner + "sys.exit(1)"}, max_restarts=2)
    ended = runs.wait()
    assert ended.state == State.FAILED  # both restarts were used up in place
    assert [(restart.exit_code, restart.cause) for restart in ended.tasks[0].restarts] == [(137, "killed by SIGKILL")]


def test_finished_peers_restart_when_a_task_returns_to_the_checkpoint(runs: Runs, tmp_path: Path) -> None:
    marker = str(tmp_path / "marker")
    chief = f"time.sleep(0.5)\nif not os.path.exists({marker!r}): open({marker!r}, 'w').close(); sys.exit(75)"
    programs = {"chief": chief, "worker-0": "print('done')"}
    runs.start(programs, scope="all", max_restarts=2, strategy="multi_worker_mirrored")
    assert runs.wait().state == State.SUCCEEDED
    assert runs.lines(task="worker-0") == ["done", "done"]


def test_a_peer_that_finishes_just_after_another_returned_to_the_checkpoint_restarts_too(runs: Runs, tmp_path: Path) -> None:
    ends = str(tmp_path / "ends")
    returns = event("restarting", attempt=2, restarts=1, exit_code=75, cause="a peer was lost", detail="", delay=1.0)
    waits_for_both = f"while not os.path.exists({ends!r}) or len(open({ends!r}).readlines()) < 2: time.sleep(0.05)"
    programs = {"chief": returns + waits_for_both, "worker-0": f"time.sleep(0.5)\nprint('done', file=open({ends!r}, 'a'))"}
    runs.start(programs, scope="all", max_restarts=2, strategy="multi_worker_mirrored")
    assert runs.wait().state == State.SUCCEEDED


def test_the_deadline_ends_a_run(runs: Runs) -> None:
    runs.start({"chief": SAVES}, deadline=0.5)
    ended = runs.wait()
    assert ended.state == State.FAILED
    assert "deadline of 0.5 s" in ended.reason
    assert any(line.startswith("saved") for line in runs.lines())


def test_training_that_never_starts_fails_and_names_the_task_and_the_peer_it_waits_for(runs: Runs) -> None:
    waiting = event("waiting", missing=[{"task": "ps-0", "address": "x:1", "reason": "refused"}], seconds=1, timeout=2)
    env = {"TRAINER_SETTINGS": json.dumps({"train": {}})}
    runs.start({"chief": waiting + "time.sleep(3600)"}, start_timeout=8.0, env=env)
    runs.until("chief to wait for ps-0", lambda: runs.backend.status("run").tasks[0].reason == "waiting for ps-0")
    assert runs.backend.status("run").state == State.PENDING
    ended = runs.wait()
    assert ended.state == State.FAILED
    assert "start timeout of 8 s: chief is waiting for ps-0" in ended.reason


def test_a_task_that_waits_for_a_peer_after_training_is_ready_is_running(runs: Runs) -> None:
    waiting = event("waiting", missing=[{"task": "ps-0", "address": "x:1", "reason": "refused"}], seconds=1, timeout=2)
    runs.start({"chief": event("ready", seconds=1) + waiting + event("restored", step=7) + waiting + "print('reported')\ntime.sleep(3600)"})
    runs.until_line("reported")
    assert runs.backend.status("run").tasks[0].state == State.RUNNING


def test_training_that_has_started_is_not_timed_out(runs: Runs) -> None:
    env = {"TRAINER_SETTINGS": json.dumps({"train": {}})}
    runs.start({"chief": event("ready", seconds=1) + "time.sleep(6.5)"}, start_timeout=6.0, env=env)
    assert runs.wait().state == State.SUCCEEDED


def test_a_running_run_is_not_started_twice(runs: Runs) -> None:
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
    tf_config = json.loads(runs.lines("one", "worker-0")[0])
    assert tf_config["cluster"] == {"chief": [_address(runs, "one", 0)], "worker": [_address(runs, "one", 1)]}
    assert tf_config["task"] == {"type": "worker", "index": 0}
    assert [status.name for status in runs.backend.runs()] == ["two", "one"]


def _address(runs: Runs, name: str, task: int) -> str:
    return runs.backend.status(name).tasks[task].address


def test_only_the_task_can_listen_on_its_port(runs: Runs) -> None:
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


def test_a_run_of_fifty_tasks_starts_and_stops(runs: Runs) -> None:
    plan = runs.plan({"chief": ""} | {f"worker-{index}": "" for index in range(49)})
    tasks = tuple(dataclasses.replace(task, command=("sleep", "3600")) for task in plan.tasks)
    runs.backend.start(PlannedRun(dataclasses.replace(plan, tasks=tasks), {"name": plan.name}))
    assert len({task.address for task in runs.backend.status("run").tasks}) == 50
    assert len(runs.processes()) >= 45
    runs.backend.stop("run", now=True)
    assert runs.processes() == []


def test_the_supervisor_loads_neither_tensorflow_nor_pydantic(runs: Runs) -> None:
    runs.start({"chief": FOREVER})
    maps = Path(f"/proc/{runs.supervisor()}/maps")
    if maps.exists():
        assert "tensorflow" not in maps.read_text()
        assert "pydantic" not in maps.read_text()
    assert process_identity.identify(runs.supervisor()) is not None
    runs.backend.stop("run")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only /proc has processor times in hundredths of a second")
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
