"""A stop while no worker of parameter servers answers: the chief saves the servers' variables, or what it has learned itself."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.integration import test_agent_recovery
from tests.integration.running import NEVER, Run, assert_saved, paced, pid_of, started, updates

pytestmark = pytest.mark.slow

WORKERS = ("worker-0", "worker-1")
STEPS = 200
QUIET = 2  # seconds: four times the longest pause between two reports of the chief
RANDOM = 100  # moves of the agent before it learns
SAVE_NEVER = {"checkpoint": {"every_steps": NEVER}, "steps": NEVER}
SERVED: dict[str, Any] = {
    "version": 1,
    "name": "run",
    "strategy": "parameter_server",
    "roles": {"chief": {}, "ps": {}, "worker": {"replicas": 2}},
}
AGENT: dict[str, Any] = test_agent_recovery.SPEC["train"]
SPECS = {
    "asynchronous": SERVED | paced(),
    "synchronous": SERVED | paced(sync={"replicas_to_aggregate": 2}),
    "agent": test_agent_recovery.SPEC | {"train": {**AGENT, "params": {**AGENT["params"], "random_steps": RANDOM}, **SAVE_NEVER}},
}


def serving(run: Run, worker: str) -> Any:
    return run.events(worker, "started")[-1]["pid"]


def silence_workers(run: Run, fault: str) -> list[int]:
    """Keep every worker from answering; return the processes that were stopped for that."""
    if fault == "hang":
        stopped = [serving(run, worker) for worker in WORKERS]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        return stopped
    stopped = [pid_of(run, worker) for worker in WORKERS]
    for pid in stopped:  # the parents, which would start them again
        os.kill(pid, signal.SIGSTOP)
    for worker in WORKERS:
        run.kill_training_process(worker)
    return stopped


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("fault", ["hang", "killed"])
def test_a_stop_without_workers_saves_the_last_step(kind: str, fault: str, tmp_path: Path) -> None:
    with started(SPECS[kind], tmp_path) as run, ThreadPoolExecutor(1) as pool:
        run.until("steps", lambda: run.chief_step("chief") >= STEPS)
        stopped = silence_workers(run, fault)
        await_no_steps(run)
        down = pool.submit(run.launcher, "down", run.name)
        try:
            (saved,) = run.until("a checkpoint", lambda: run.events("chief", "checkpoint"))
            run.until("the chief to leave", lambda: pid_of(run, "chief") is None)
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        down.result()
        step = assert_saved(run)
        assert step == saved["step"] == run.chief_step("chief")
        expected = (step - RANDOM) // 4 if kind == "agent" else step  # an agent learns every four moves
        assert updates(run, step) == expected


def await_no_steps(run: Run) -> None:
    """Wait until steps in progress have ended and the chief waits: it has reported no new step for two seconds."""
    last = [run.chief_step("chief"), time.monotonic()]

    def quiet() -> bool:
        if (step := run.chief_step("chief")) != last[0]:
            last[:] = step, time.monotonic()
        return time.monotonic() - last[1] > QUIET

    run.until(f"no step for {QUIET} s", quiet)
