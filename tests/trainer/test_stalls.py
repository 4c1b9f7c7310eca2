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

pytestmark = pytest.mark.takes_minutes  # in which they wait, while others compute

LIMIT = 1.0
OWN = str(Path(trainer.__file__).parent)
# Says that it trains, with a step of 10 ms, then does what its argument says.
HEAD = """
import json, os, sys, time
from trainer import stack_signal
stack_signal.register()

def tell(**fields):
    os.write(int(os.environ["TRAINER_EVENTS_FD"]), json.dumps({"event": "alive", "time": time.time(), "task": "t", **fields}).replace(": ", ":").encode() + b"\\n")

def trains(seconds=1.0):
    tell(phase="training", step=1)
    for step in range(2, 5):
        tell(phase="training", step=step, seconds=0.01, steps=1)

def hangs():
    print("hangs", flush=True)
    time.sleep(60)

"""

# The same where the trainer's own code waits for its workers.
AS_THE_TRAINER = f"{HEAD}\ntrains()\nexec(compile('time.sleep(60)', {OWN + '/engine/parameter_server/worker_pool.py'!r}, 'exec'))"


def write(directory: Path, program: str) -> tuple[str, str]:
    file = directory / "task.py"
    file.write_text(f"{HEAD}{program}\ntell(event='done')", encoding="utf-8")
    return sys.executable, str(file)


def stalls(**chosen: Any) -> dict[str, Any]:
    return {"timeout": LIMIT, **chosen}


def test_a_stall_is_told_with_what_the_task_does_and_that_it_goes_on(trainers: Any, tmp_path: Path) -> None:
    run = trainers.start_parent(*write(tmp_path, "trains(); time.sleep(3); trains(); time.sleep(1.5); hangs()"), stalls=stalls())
    told = run.event("stalled")
    assert told["seconds"] >= LIMIT
    assert (told["step"], told["doing"]) == (4, "code")
    assert told["place"].startswith("task.py:")
    assert run.event("resumed")["seconds"] > LIMIT
    assert run.event("stalled", 2)["place"].startswith("task.py:")
    assert not run.events("restarting")
    assert not run.events("alive")


@pytest.mark.parametrize("restart", ["on_failure", "exit_code"])
def test_restart_kills_and_starts_again_and_counts(trainers: Any, tmp_path: Path, restart: str) -> None:
    program = "trains()\nif os.environ['TRAINER_ATTEMPT'] == '1': hangs()"
    run = trainers.start_parent(*write(tmp_path, program), stalls=stalls(on_stall="restart"), policy={"restart": restart})
    again = run.event("restarting")
    assert again["restarts"] == 1
    assert "no progress for" in again["detail"]
    assert "in its code, task.py:" in again["detail"]
    assert "out of memory" not in again["cause"]
    assert run.code() == 0


def test_fail_ends_the_task_for_good(trainers: Any, tmp_path: Path) -> None:
    run = trainers.start_parent(*write(tmp_path, "trains(); hangs()"), stalls=stalls(on_stall="fail"))
    assert run.code() == 2
    assert run.event("failed")["cause"].startswith("no progress for ")
    assert not run.events("restarting")


@pytest.mark.parametrize("phase", ["saving", "waiting"])
def test_what_other_limits_judge_is_no_stall(trainers: Any, tmp_path: Path, phase: str) -> None:
    run = trainers.start_parent(*write(tmp_path, f"trains(); tell(phase={phase!r}); time.sleep(3)"), stalls=stalls(on_stall="fail"))
    assert run.code() == 0
    assert not run.events("stalled")


def test_the_first_step_may_take_longer_and_so_may_the_first_batch(trainers: Any, tmp_path: Path) -> None:
    program = "tell(phase='training', step=0); time.sleep(2.5); trains(); tell(phase='evaluating', step=4); time.sleep(2.5)"
    run = trainers.start_parent(*write(tmp_path, program), stalls=stalls(on_stall="fail"))
    assert run.code() == 0
    assert not run.events("stalled")


def test_an_evaluation_is_judged_by_its_own_batches(trainers: Any, tmp_path: Path) -> None:
    run = trainers.start_parent(
        *write(tmp_path, "trains(); tell(phase='evaluating'); tell(phase='evaluating', seconds=0.1, steps=1); hangs()"), stalls=stalls()
    )
    assert run.event("stalled")["doing"] == "code"


def test_a_stopped_process_is_named_also_where_it_only_serves(trainers: Any, tmp_path: Path) -> None:
    run = trainers.start_parent(*write(tmp_path, "hangs()"), stalls=stalls())
    run.line("hangs")
    pid = run.event("started")["pid"]
    os.kill(pid, signal.SIGSTOP)
    assert run.event("stalled")["doing"] == "stopped"
    os.kill(pid, signal.SIGCONT)
    assert run.event("resumed")


def test_no_stall_while_a_peer_is_known_to_be_away(trainers: Any, ports: Any, tmp_path: Path) -> None:
    there, away = ports.address(), ports.address()
    ports.listen(there)
    ports.listen(away)
    run = trainers.start_parent(
        *write(tmp_path, "print('begins', flush=True); time.sleep(1); trains(); hangs()"),
        awaited={"worker-0": there, "worker-1": away},
        stalls=stalls(),
    )
    run.line("begins")
    ports.close(away)
    run.line("hangs")
    with pytest.raises(pytest.fail.Exception):
        run.code(4)
    assert not run.events("stalled")


def test_a_server_that_takes_connections_and_does_not_answer_is_named(trainers: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as answering:
        threading.Thread(target=_send_handshakes, args=(answering,), daemon=True).start()
        peers = {name: f"127.0.0.1:{server.getsockname()[1]}" for name, server in (("ps-0", silent), ("worker-0", answering))}
        run = trainers.start_parent(
            sys.executable, "-c", AS_THE_TRAINER, awaited=peers, watched_workers=[peers["worker-0"]], stalls=stalls()
        )
        told = run.event("stalled")
    assert (told["doing"], told["place"]) == ("servers", "ps-0")


def _send_handshakes(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection, contextlib.suppress(OSError):  # who only looks whether it is there resets it
            connection.sendall(b"\x00\x00\x12\x04")


def test_a_program_is_judged_by_its_output_and_only_with_a_limit(trainers: Any, tmp_path: Path) -> None:
    program = "for _ in range(8): print('goes on', flush=True); time.sleep(0.4)\nhangs()"
    judged = trainers.start_parent(*write(tmp_path, program), built_in=False, stalls=stalls())
    assert judged.event("stalled")["place"].startswith("task.py:")
    assert judged.lines.count("goes on") == 8
    free = trainers.start_parent(*write(tmp_path, "time.sleep(2)"), built_in=False)
    assert free.code() == 0
    assert not free.events("stalled")
