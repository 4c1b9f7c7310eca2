"""The end of restarts in place, and the reset of their count, with real processes."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.conftest import DRIVER
from tests.trainer.stand_ins import DONE, shell
from trainer.restart_in_place import SAME_AGAIN

PROGRAM = "import os, sys\nprint('3/10 [=>', end='', flush=True)\n"

# The system refuses the first process, as it does when there are too many.
REFUSED_ONCE = """
import errno, os, runpy
from trainer import child

def refuse(*_, spawn=child.spawn, **__):
    child.spawn = spawn
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

child.spawn = refuse
runpy.run_path(os.environ["DRIVER"], run_name="__main__")
"""


def python(tmp_path: Path, script: str) -> tuple[str, ...]:
    (tmp_path / "train.py").write_text(PROGRAM + script)
    return (sys.executable, str(tmp_path / "train.py"))


def test_a_program_that_raises_the_same_error_twice_is_not_started_a_third_time(trainers: Any, tmp_path: Path) -> None:
    run = trainers.start_parent(*python(tmp_path, "raise ValueError(f'no rows at {os.getpid()}')"), runs_built_in_trainer=False)
    assert run.code() == 2
    assert len(run.events("started")) == 2
    failed = run.event("failed")
    assert (failed["exit_code"], failed["cause"]) == (2, SAME_AGAIN)
    assert failed["detail"].startswith("ValueError: no rows at ")
    assert failed["detail"].endswith(f" ({tmp_path}/train.py:3)")
    assert run.event("restarting")["detail"].startswith("ValueError: no rows at ")


def test_a_program_that_loses_a_peer_each_time_is_retried_up_to_the_limit(trainers: Any, tmp_path: Path) -> None:
    script = "class UnavailableError(Exception): ...\nraise UnavailableError('ps-0 does not answer')"
    run = trainers.start_parent(*python(tmp_path, script), runs_built_in_trainer=False, policy={"max_restarts": 3})
    assert run.code() == 1
    assert [event["left"] for event in run.events("restarting")] == [2, 1, 0]
    assert run.event("failed")["detail"] == f"UnavailableError: ps-0 does not answer ({tmp_path}/train.py:4)"


def test_a_program_without_a_traceback_is_retried_up_to_the_limit(trainers: Any) -> None:
    run = trainers.start_parent(*shell("echo it broke; exit 1"), runs_built_in_trainer=False, policy={"max_restarts": 2})
    assert run.code() == 1
    assert len(run.events("started")) == 3


def test_an_attempt_whose_process_cannot_be_started_is_followed_by_another(trainers: Any) -> None:
    config = {"command": shell(DONE), "policy": {"max_restarts": 1}}
    run = trainers.start([sys.executable, "-c", REFUSED_ONCE, json.dumps(config)], {"DRIVER": str(DRIVER)})
    assert run.code() == 0
    assert run.event("restarting")["detail"].startswith("its process could not be started: Resource temporarily unavailable; raise ")
    assert [event["attempt"] for event in run.events("started")] == [2]


def test_a_long_attempt_resets_the_restart_count(trainers: Any, tmp_path: Path) -> None:
    script = f'until [ -e "{tmp_path}/$TRAINER_ATTEMPT" ]; do sleep 0.05; done; [ "$TRAINER_ATTEMPT" = 4 ] || kill -9 $$'
    run = trainers.start_parent(*shell(script), runs_built_in_trainer=False, policy={"max_restarts": 1, "recovers_after": 0.5})
    for attempt in range(1, 5):
        if attempt > 1:
            recovered = run.event("recovered", attempt - 1)
            assert (recovered["restarts"], recovered["left"]) == (0, 1)
        (tmp_path / str(attempt)).touch()
    assert run.code() == 0
    assert [event["restarts"] for event in run.events("restarting")] == [1, 1, 1]


def test_a_program_that_is_always_restarted_ends_with_a_failure_or_a_stop(trainers: Any) -> None:
    always = {"restart": "always", "max_restarts": 0}
    run = trainers.start_parent(*shell('[ "$TRAINER_ATTEMPT" = 1 ] || exit 3'), runs_built_in_trainer=False, policy=always)
    assert run.code() == 3
    restarting = run.event("restarting")
    assert (restarting["exit_code"], restarting["restarts"], restarting["left"]) == (0, 0, 0)
    stopped = trainers.start_parent(
        *shell("trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done"), runs_built_in_trainer=False, policy=always
    )
    stopped.line("ready")
    stopped.send(signal.SIGTERM)
    assert stopped.code() == 0


def test_a_program_that_saves_before_it_raises_the_same_error_is_retried(trainers: Any, tmp_path: Path) -> None:
    script = (
        "from trainer.events import Reporter\n"
        "step = min(int(os.environ['TRAINER_ATTEMPT']), 3)\n"
        "Reporter('chief')('checkpoint', step=step, path='ckpt', seconds=0.1)\n"
        "raise ValueError('no rows')\n"
    )
    run = trainers.start_parent(*python(tmp_path, script), runs_built_in_trainer=False)
    assert run.code() == 2
    assert [event["step"] for event in run.events("checkpoint")] == [1, 2, 3, 3]
    assert run.event("failed")["cause"] == SAME_AGAIN


@pytest.mark.parametrize("role, attempts", [("chief", 3), ("evaluator", 2)])
def test_only_an_evaluator_s_evaluations_count_as_checkpoints(trainers: Any, tmp_path: Path, role: str, attempts: int) -> None:
    """A chief evaluates before it saves; the next attempt resumes from an earlier step, and the steps that it saves are newer ones."""
    script = (
        "from trainer.events import Reporter\n"
        f"report = Reporter({role!r})\n"
        "report('evaluated', step=500, metrics={}, seconds=0.1)\n"
        "if os.environ['TRAINER_ATTEMPT'] == '2': report('checkpoint', step=400, path='ckpt', seconds=0.1)\n"
        "raise ValueError('no rows')\n"
    )
    run = trainers.start_parent(*python(tmp_path, script), runs_built_in_trainer=False, role=role)
    assert run.code() == 2
    assert len(run.events("started")) == attempts


CHECKPOINTS = """
from trainer.events import Reporter
report, attempt = Reporter("chief"), int(os.environ["TRAINER_ATTEMPT"])
report("checkpoint", step=min(attempt, 4), path="ckpt", seconds=0.1)
os.kill(os.getpid(), 9)
"""


def test_a_newer_checkpoint_resets_the_restart_count(trainers: Any, tmp_path: Path) -> None:
    run = trainers.start_parent(*python(tmp_path, CHECKPOINTS), policy={"max_restarts": 2, "recovers_after": 3600.0})
    assert run.code() == 1
    # Four attempts save a later step each; of the three failures since the last of these steps, the third is past the limit.
    assert [event["restarts"] for event in run.events("restarting")] == [1, 1, 1, 1, 2]
    assert len(run.events("recovered")) == 3
    assert len(run.events("started")) == 6
