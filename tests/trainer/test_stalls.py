"""A task that makes no progress is noticed by its parent: with real processes and short limits."""

import contextlib
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import trainer

pytestmark = pytest.mark.takes_minutes  # mostly waiting, while other tests compute

LIMIT = 1.0
OWN = str(Path(trainer.__file__).parent)
# Defines a training that reports steps of 10 ms, and a hang; each test's program follows.
HEAD = """
import json, os, sys, time
from trainer import stack_signal
stack_signal.register()

def report(**fields):
    os.write(int(os.environ["TRAINER_EVENTS_FD"]), json.dumps({"event": "heartbeat", "time": time.time(), "task": "t", **fields}).replace(": ", ":").encode() + b"\\n")

def trains(seconds=1.0):
    report(phase="training", step=1)
    for step in range(2, 5):
        report(phase="training", step=step, seconds=0.01, steps=1)

def hangs():
    print("hangs", flush=True)
    time.sleep(3600)

"""

# The trainer's own code waits for its workers.
AS_THE_TRAINER = f"{HEAD}\ntrains()\nexec(compile('time.sleep(3600)', {OWN + '/engine/parameter_server/worker_pool.py'!r}, 'exec'))"


def write(directory: Path, program: str) -> tuple[str, str]:
    file = directory / "task.py"
    file.write_text(f"{HEAD}{program}\nreport(event='done')", encoding="utf-8")
    return sys.executable, str(file)


def stalls(**options: Any) -> dict[str, Any]:
    return {"timeout": LIMIT, **options}


def test_a_stall_is_reported_with_the_tasks_activity_and_so_is_its_end(trainers: Any, tmp_path: Path) -> None:
    run = trainers.start_parent(*write(tmp_path, "trains(); time.sleep(3); trains(); time.sleep(1.5); hangs()"), stalls=stalls())
    stalled = run.event("stalled")
    assert stalled["seconds"] >= LIMIT
    assert (stalled["step"], stalled["doing"]) == (4, "code")
    assert stalled["place"].startswith("task.py:")
    assert run.event("resumed")["seconds"] > LIMIT
    assert run.event("stalled", 2)["place"].startswith("task.py:")
    assert not run.events("restarting")
    assert not run.events("heartbeat")


@pytest.mark.parametrize("restart", ["on_failure", "exit_code"])
def test_restart_kills_the_task_starts_it_again_and_counts(trainers: Any, tmp_path: Path, restart: str) -> None:
    program = "trains()\nif os.environ['TRAINER_ATTEMPT'] == '1': hangs()"
    run = trainers.start_parent(*write(tmp_path, program), stalls=stalls(on_stall="restart"), policy={"restart": restart})
    again = run.event("restarting")
    assert again["restarts"] == 1
    assert "no progress for" in again["detail"]
    assert "in its code, task.py:" in again["detail"]
    assert "out of memory" not in again["cause"]
    assert run.code() == 0


def test_the_attempt_after_a_stall_is_not_taken_for_the_killed_one(trainers: Any, tmp_path: Path) -> None:
    program = "trains()\nif os.environ['TRAINER_ATTEMPT'] == '1': hangs()\nfor _ in range(6): trains(); time.sleep(0.2)"
    run = trainers.start_parent(*write(tmp_path, program), stalls=stalls(on_stall="restart"), timeouts={"reap_timeout": 0.5})
    assert run.code() == 0
    assert not run.events("failed")


def test_fail_ends_the_task_without_a_restart(trainers: Any, tmp_path: Path) -> None:
    run = trainers.start_parent(*write(tmp_path, "trains(); hangs()"), stalls=stalls(on_stall="fail"))
    assert run.code() == 2
    assert run.event("failed")["cause"].startswith("no progress for ")
    assert not run.events("restarting")


@pytest.mark.parametrize("phase", ["saving", "waiting"])
def test_phases_with_limits_of_their_own_are_no_stall(trainers: Any, tmp_path: Path, phase: str) -> None:
    run = trainers.start_parent(*write(tmp_path, f"trains(); report(phase={phase!r}); time.sleep(3)"), stalls=stalls(on_stall="fail"))
    assert run.code() == 0
    assert not run.events("stalled")


def test_the_first_step_and_the_first_batch_may_take_longer(trainers: Any, tmp_path: Path) -> None:
    program = "report(phase='training', step=0); time.sleep(2.5); trains(); report(phase='evaluating', step=4); time.sleep(2.5)"
    run = trainers.start_parent(*write(tmp_path, program), stalls=stalls(on_stall="fail"))
    assert run.code() == 0
    assert not run.events("stalled")


def test_an_evaluation_is_judged_by_its_own_batches(trainers: Any, tmp_path: Path) -> None:
    run = trainers.start_parent(
        *write(tmp_path, "trains(); report(phase='evaluating'); report(phase='evaluating', seconds=0.1, steps=1); hangs()"), stalls=stalls()
    )
    assert run.event("stalled")["doing"] == "code"


def test_a_stopped_process_is_reported_even_if_it_only_serves(trainers: Any, tmp_path: Path) -> None:
    run = trainers.start_parent(*write(tmp_path, "hangs()"), stalls=stalls())
    run.line("hangs")
    pid = run.event("started")["pid"]
    os.kill(pid, signal.SIGSTOP)
    assert run.event("stalled")["doing"] == "stopped"
    os.kill(pid, signal.SIGCONT)
    assert run.event("resumed")


def test_no_stall_is_reported_while_a_peer_is_known_to_be_away(trainers: Any, ports: Any, tmp_path: Path) -> None:
    reachable, away = ports.address(), ports.address()
    ports.listen(reachable)
    ports.listen(away)
    run = trainers.start_parent(
        *write(tmp_path, "print('begins', flush=True); time.sleep(1); trains(); hangs()"),
        required_peers={"worker-0": reachable, "worker-1": away},
        stalls=stalls(),
    )
    run.line("begins")
    ports.close(away)
    run.line("hangs")
    with pytest.raises(pytest.fail.Exception):
        run.code(4)
    assert not run.events("stalled")


def test_a_server_that_takes_connections_and_does_not_answer_is_reported(trainers: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as answering:
        threading.Thread(target=_send_handshakes, args=(answering,), daemon=True).start()
        peers = {name: f"127.0.0.1:{server.getsockname()[1]}" for name, server in (("ps-0", silent), ("worker-0", answering))}
        run = trainers.start_parent(
            sys.executable, "-c", AS_THE_TRAINER, required_peers=peers, watched_workers=[peers["worker-0"]], stalls=stalls()
        )
        stalled = run.event("stalled")
    assert (stalled["doing"], stalled["place"]) == ("servers", "ps-0")


def _send_handshakes(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection, contextlib.suppress(OSError):  # a probe resets the connection
            connection.sendall(b"\x00\x00\x12\x04")


def test_a_program_is_judged_by_its_output_and_only_with_a_limit(trainers: Any, tmp_path: Path) -> None:
    program = "for _ in range(8): print('works', flush=True); time.sleep(0.4)\nhangs()"
    judged = trainers.start_parent(*write(tmp_path, program), runs_built_in_trainer=False, stalls=stalls())
    assert judged.event("stalled")["place"].startswith("task.py:")
    assert judged.lines.count("works") == 8
    free = trainers.start_parent(*write(tmp_path, "time.sleep(2)"), runs_built_in_trainer=False)
    assert free.code() == 0
    assert not free.events("stalled")
