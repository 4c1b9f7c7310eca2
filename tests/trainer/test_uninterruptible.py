"""Training processes that have ended except for a thread that writes to a frozen disk: their task ends, or continues once the disk answers."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.stand_ins import DONE_IN_PYTHON
from tests.volumes import Volume, volume

# Writes in a thread, and exits with the given code, at once or when asked to stop; the second attempt succeeds.
WRITES = f"""
import os, signal, sys, threading
file, code, at_once = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "at once"
if os.environ["TRAINER_ATTEMPT"] != "1":
    {DONE_IN_PYTHON}
    sys.exit(0)
with open(os.environ["TRAINER_ERROR_FILE"], "w") as error:
    error.write("it could not be saved\\n")
def write():
    with open(file, "w") as out:
        out.write("text")
        out.flush()
        os.fsync(out.fileno())
signal.signal(signal.SIGTERM, lambda *_: os._exit(code))
threading.Thread(target=write, daemon=True).start()
print("it writes", flush=True)
threading.Event().wait(0.5 if at_once else None)
os._exit(code)
"""


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Volume]:
    with volume(tmp_path / "disk", tmp_path / "image") as disk:
        disk.freeze()
        yield disk


def start(trainers: Any, frozen: Volume, code: int, when: str) -> Any:
    run = trainers.start_parent(sys.executable, "-c", WRITES, str(frozen.path / "file"), str(code), when)
    run.line("it writes")
    return run


def test_a_final_failure_ends_the_task_while_the_disk_is_frozen(trainers: Any, frozen: Volume) -> None:
    run = start(trainers, frozen, 2, "at once")
    assert run.code() == 2
    assert (run.event("failed")["exit_code"], run.event("failed")["detail"]) == (2, "it could not be saved")
    assert "write to a volume that does not answer" in run.event("notice")["message"]


def test_a_stop_ends_the_task_while_the_disk_is_frozen_and_reports_the_error(trainers: Any, frozen: Volume) -> None:
    run = start(trainers, frozen, 1, "when asked")
    run.send(signal.SIGTERM)
    assert run.code() == 1
    assert run.event("failed")["detail"] == "it could not be saved"


def test_another_attempt_begins_when_the_disk_answers(trainers: Any, frozen: Volume) -> None:
    run = start(trainers, frozen, 75, "at once")
    run.event("notice")
    assert len(run.events("started")) == 1
    frozen.thaw()
    assert run.code() == 0
    assert len(run.events("started")) == 2


# The first thread has ended, but not the process: another thread works.
MAIN_THREAD_ENDS = f"""
import ctypes, os, threading, time
def work():
    time.sleep(2.5)
    {DONE_IN_PYTHON}
    print("worked", flush=True)
    os._exit(0)
threading.Thread(target=work).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_program_that_continues_in_another_thread_has_not_ended(trainers: Any) -> None:
    run = trainers.start_parent(sys.executable, "-c", MAIN_THREAD_ENDS)
    run.line("worked")
    assert run.code() == 0
    assert not run.events("notice")
