"""Strategy manual in whole runs: a lost worker is named and the program runs again, a stop ends it, and its errors are reported."""

import json
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.integration.running import Run, pid_of, started
from tests.trainer.tensorboard_reader import read_events
from trainer.events import Event

pytestmark = pytest.mark.slow

# A file beside it counts the attempts; another one lets it hurry.
PROGRAM = """
import os, time
import tensorflow as tf

def slow(cluster, rounds):
    here = os.path.dirname(__file__)
    with open(os.path.join(here, "attempts"), "a") as file:
        file.write("x")
    total = 0.0
    for step in range(1, rounds + 1):
        total += sum(float(one) for one in cluster.each(lambda task: tf.add(1.0, 2.0, name="three")))
        cluster.progress(step, rounds, {"total": total})
        tf.summary.scalar("total", total, step=step)
        time.sleep(0 if os.path.exists(os.path.join(here, "hurry")) else 0.05)
    return {"total": total}

def wrong(cluster):
    return 5

def failing(cluster):
    raise RuntimeError("the program's own fault")

def unavailable(cluster):
    raise tf.errors.UnavailableError(None, None, "the program's own shop is closed")

def never(cluster):
    tf.add(1.0, 2.0)
    time.sleep(3600)

def deaf(cluster):
    forever = tf.function(lambda: tf.while_loop(lambda i: i < 2**62, lambda i: i + 1, [tf.constant(0, tf.int64)]))
    forever()

def leaving(cluster):
    with tf.device(cluster.tasks[1].device):
        tf.function(lambda: tf.while_loop(lambda i: i < 2**62, lambda i: i + 1, [tf.constant(0, tf.int64)]))()
    print("the program has left", flush=True)
"""


def spec(tmp_path: Path, program: str, **params: Any) -> dict[str, Any]:
    code = tmp_path / "code"
    code.mkdir()
    (code / "mine.py").write_text(PROGRAM)
    roles = {"chief": {}, "worker": {"replicas": 2}}
    train = {"workload": f"mine:{program}", "params": params}
    return {"version": 1, "name": "byhand", "strategy": "manual", "roles": roles, "code": str(code), "train": train}


def assert_succeeded(run: Run) -> None:
    result = run.launcher("wait", run.name, check=False)
    assert result.returncode == 0, result.stdout + result.stderr + run.log("chief")


def assert_stops(run: Run) -> None:
    run.launcher("down", run.name)
    assert run.status()["state"] == "stopped"
    assert json.loads((run.directory / "run.json").read_text())["state"] == "stopped"


def test_a_lost_task_is_named_and_the_program_runs_again(tmp_path: Path) -> None:
    rounds = 400  # twenty seconds: more than pass between a report and a kill
    with started(spec(tmp_path, "slow", rounds=rounds), tmp_path) as run:
        for attempt, victim in enumerate(("worker-1", "chief"), 1):
            run.until(f"progress of attempt {attempt}", partial(progressed, run, attempt))
            killed = run.kill_training_process(victim)
            restarted = run.until(f"the chief to start again, {victim} killed", partial(restarting_after, run, killed - 0.01))
            if victim == "worker-1":
                assert restarted[0]["exit_code"] == 75
                assert re.match(r"worker-1 \(127\.0\.0\.1:\d+\) (was lost|is gone)", restarted[0]["detail"]), restarted[0]["detail"]
                print(f"\nworker-1 killed, named after {restarted[0]['time'] - killed:.1f} s")
        (tmp_path / "code" / "hurry").touch()
        assert_succeeded(run)
        assert (tmp_path / "code" / "attempts").read_text() == "xxx"
        status = run.status()
        assert status["metrics"] == {"total": 2 * 3 * rounds}
        assert (status["step"], status["steps"]) == (rounds, rounds)
        record = json.loads((run.directory / "run.json").read_text())
        assert (record["state"], record["step"], record["metrics"]) == ("succeeded", rounds, {"total": 2 * 3 * rounds})
        assert "worker-1  cpu:0" in (run.directory / "results" / "devices.txt").read_text()
        assert read_events(run.directory / "logs" / "train").tags("scalars") >= {"total"}


def progressed(run: Run, attempt: int) -> bool:
    """Return whether the chief has reported progress in an attempt."""
    begun = run.events("chief", "started")[attempt - 1 :]
    return bool(begun) and any(event["time"] > begun[0]["time"] for event in run.events("chief", "progress"))


def restarting_after(run: Run, when: float) -> list[Event]:
    return [event for event in run.events("chief", "restarting") if event["time"] > when]


@pytest.mark.parametrize("program", ["never", "deaf"])  # asleep in Python, where signals arrive, or inside TensorFlow
def test_a_stop_ends_a_program_that_does_not_check_for_it(program: str, tmp_path: Path) -> None:
    with started(spec(tmp_path, program), tmp_path) as run:
        run.until("it to run", lambda: run.events("chief", "ready"))
        assert_stops(run)


def test_a_program_that_leaves_a_running_call_is_watched_until_that_call_ends(tmp_path: Path) -> None:
    with started(spec(tmp_path, "leaving"), tmp_path) as run:
        run.until("the program to leave", lambda: "the program has left" in run.log("chief"))
        killed = run.kill_training_process("worker-1")
        (restarted,) = run.until("the chief to start again", lambda: run.events("chief", "restarting"))
        assert re.match(r"worker-1 \(127\.0\.0\.1:\d+\) (was lost|is gone)", restarted["detail"]), restarted["detail"]
        run.until("it to run again", lambda: [e for e in run.events("chief", "ready") if e["time"] > killed])
        assert_stops(run)


def has_unread_data(port: int) -> bool:
    """Return whether a connection to a port has unread data: probes send none, gRPC sends a greeting. See proc(5), net/tcp."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    return any(
        int(local.rpartition(":")[2], 16) == port and state == "01" and int(queues.rpartition(":")[2], 16) > 0
        for _, local, _, state, queues, *_ in rows
    )


@pytest.mark.skipif(not Path("/proc/net/tcp6").exists(), reason="only /proc shows that data waits to be read")
def test_a_stop_ends_a_chief_that_is_connecting(tmp_path: Path) -> None:
    with started(spec(tmp_path, "never"), tmp_path) as run:
        plan = json.loads((run.directory / "launcher" / "plan.json").read_text())
        address = next(task["address"] for task in plan["tasks"] if task["name"] == "worker-1")
        run.until("the program to run", lambda: run.events("chief", "ready"))
        pid = run.events("worker-1", "started")[-1]["pid"]
        os.kill(pid, signal.SIGSTOP)  # it accepts connections, and does not answer
        try:
            killed = run.kill_training_process("chief")
            run.until("the chief to start again", lambda: len(run.events("chief", "started")) == 2)
            port = int(address.rpartition(":")[2])
            run.until("the chief to wait inside TensorFlow for worker-1", lambda: has_unread_data(port))
            assert not [event for event in run.events("chief", "ready") if event["time"] > killed]
            with ThreadPoolExecutor(1) as pool:
                down = pool.submit(run.launcher, "down", run.name)
                run.until("the chief to stop", lambda: pid_of(run, "chief") is None)
                os.kill(pid, signal.SIGCONT)
                down.result()
            chief = next(task for task in run.status()["tasks"] if task["name"] == "chief")
            assert (chief["exit_code"], chief["reason"]) == (143, "")  # not killed after the grace period
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(
    "program, detail",
    [("wrong", "mine:wrong returned 5; expected a dict of names and numbers"), ("failing", "the program's own fault")],
)
def test_an_error_in_a_program_is_reported_and_not_retried_endlessly(program: str, detail: str, tmp_path: Path) -> None:
    with started(spec(tmp_path, program), tmp_path) as run:
        assert run.launcher("wait", run.name, check=False).returncode == 1
        failed = run.events("chief", "failed")[-1]
        assert failed["exit_code"] == 2
        assert detail in failed["detail"]
        assert len(run.events("chief", "started")) <= 2


def test_a_programs_own_error_is_not_taken_for_a_lost_server(tmp_path: Path) -> None:
    # TensorFlow raises errors of this kind when a server is lost. Its cause may pass, so the program is retried.
    with started({**spec(tmp_path, "unavailable"), "limits": {"max_restarts": 1}}, tmp_path) as run:
        assert run.launcher("wait", run.name, check=False).returncode == 1
        events = [*run.events("chief", "restarting"), *run.events("chief", "failed")]
        assert len(events) == 2
        assert all(event["detail"].startswith("UnavailableError: the program's own shop is closed") for event in events)


def test_a_hung_worker_does_not_prevent_a_stop(tmp_path: Path) -> None:
    with started(spec(tmp_path, "slow", rounds=100_000) | {"limits": {"grace_period": "30s"}}, tmp_path) as run:
        run.until("progress", lambda: run.events("chief", "progress"))
        pid = run.events("worker-0", "started")[-1]["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            run.launcher("down", run.name)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert run.status()["state"] in {"stopped", "failed"}
