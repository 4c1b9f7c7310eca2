"""A stop while no worker of parameter servers answers: the chief saves what the servers have, or what it has learned itself."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.integration import test_agent_recovery, test_stop_and_resume
from tests.integration.running import Run, started
from tests.integration.test_stop_and_resume import pid_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

WORKERS = ("worker-0", "worker-1")
HEARD_WITHIN = 28  # seconds, of the 30 that a task has; a deadline, not a measure
NEVER = 1_000_000
RANDOM = 100  # moves of the agent before it learns
SAVE_NEVER = {"checkpoint": {"every_steps": NEVER}, "steps": NEVER}
TRAIN = test_stop_and_resume.TRAIN | SAVE_NEVER
AGENT: dict[str, Any] = test_agent_recovery.SPEC["train"]
SPECS = {
    "asynchronous": test_stop_and_resume.spec("parameter_server", train=TRAIN),
    "synchronous": test_stop_and_resume.spec("parameter_server", train=TRAIN | {"sync": {"replicas_to_aggregate": 2}}),
    "agent": test_agent_recovery.SPEC | {"train": {**AGENT, "params": {**AGENT["params"], "random_steps": RANDOM}, **SAVE_NEVER}},
}


def serving(run: Run, worker: str) -> Any:
    return run.events(worker, "started")[-1]["pid"]


def quieten(run: Run, how: str) -> list[int]:
    """Let no worker answer; return the processes that were stopped for it."""
    if how == "hang":
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


@pytest.mark.parametrize("what", SPECS)
@pytest.mark.parametrize("how", ["hang", "gone"])
def test_a_stop_is_heard_and_saved(what: str, how: str, tmp_path: Path) -> None:
    with started(SPECS[what], tmp_path) as run, ThreadPoolExecutor(1) as pool:
        test_stop_and_resume.until_midway(run, "chief")
        stopped = quieten(run, how)
        time.sleep(3)  # what was under way has come to its end, and the chief waits
        began = time.time()
        down = pool.submit(run.launcher, "down", run.name, timeout=120)
        try:
            (saved,) = run.until("a checkpoint", lambda: run.events("chief", "checkpoint"), timeout=60)
            run.until("the chief to leave", lambda: pid_of(run, "chief") is None)
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        down.result()
        print(f"\n{what}, {how}: saved {saved['time'] - began:.1f} s after the stop")
        assert saved["time"] - began < HEARD_WITHIN
        step = test_stop_and_resume.assert_saved(run)
        assert step == saved["step"] == run.chief_step("chief")
        seen = (step - RANDOM) // 4 if what == "agent" else step  # an agent learns every four moves
        assert test_stop_and_resume.updates(run, step) == seen
