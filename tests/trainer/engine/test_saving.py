"""Saves on volumes that are full, read-only or do not answer: training continues, the failure is reported at once, and nothing is lost."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from tests.trainer.engine.small import Small, small_config
from tests.trainer.engine.test_loop import ONLY_SAVED, Output, settings, train
from tests.volumes import Volume, volume
from tests.waiting import until
from trainer import error_file
from trainer.engine import evaluations, loop, model_ops, saving
from trainer.engine.checkpoints import CannotSaveError, Checkpoints, InMemoryCheckpoint, list_checkpoints
from trainer.engine.collectives.all_reduce import AllReduce
from trainer.engine.export import BestModel
from trainer.engine.parameter_server import server_watch
from trainer.engine.replicated import ReplicatedSession
from trainer.engine.session import SaveError, UnsavedStopError
from trainer.events import Reporter, render
from trainer.settings import Export


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Yield the path of a disk of 1 MB, in memory."""
    path = tmp_path / "disk"
    path.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", path], check=False).returncode:
        pytest.skip("only root can mount a disk of the test's own")
    yield path
    subprocess.run(["mount", "-o", "remount,rw", path], check=True)
    subprocess.run(["umount", "-l", path], check=True)


@pytest.fixture
def freezable(tmp_path: Path) -> Iterator[Volume]:
    with volume(tmp_path / "disk", tmp_path / "image") as disk:
        yield disk


def fill(disk: Path) -> None:
    """Wait for the saves under way, then leave no free byte."""
    saving.wait_for_saves()
    with (disk / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass


def remount(disk: Path, option: str) -> None:
    saving.wait_for_saves()
    subprocess.run(["mount", "-o", f"remount,{option}", disk], check=True)


def session_with(actions: dict[int, Callable[[], None]]) -> type[ReplicatedSession]:
    """Return a session that calls `actions[step]` after that step, and takes a while for each step."""

    class WithActions(ReplicatedSession):
        def run(self, steps: int, **options: Any) -> Any:
            progress = super().run(steps, **options)
            time.sleep(0.02)
            actions.get(progress.step, lambda: None)()
            return progress

    return WithActions


def saved(run_dir: Path) -> list[int]:
    return [int(path.rpartition("-")[2]) for path in list_checkpoints(run_dir / "checkpoints")]


def summaries(log: Path) -> list[Any]:
    """Return the events of a file that have a loss."""
    events = tf.compat.v1.train.summary_iterator(str(log))
    return [event for event in events if any(value.tag == "loss" for value in event.summary.value)]


@pytest.fixture
def fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the delay before a failed save is tried again."""
    timeouts = saving.Timeouts
    monkeypatch.setattr(loop, "Timeouts", lambda timeout, grace: timeouts(timeout, grace, retry_delay=0.05))


@pytest.mark.usefixtures("fast_retries")
def test_a_full_disk_does_not_stop_training_and_is_reported_with_path_and_free_bytes(disk: Path) -> None:
    kind = session_with({110: lambda: fill(disk), 210: (disk / "filler").unlink})
    config: dict[str, Any] = {"checkpoint": {"every_steps": 100, "keep": 2}, "evaluate": {"every_steps": 150}}
    _, outcome, output = train(disk, 300, {}, kind=kind, steps_per_execution=1, **config)
    assert (outcome.step, outcome.finished) == (300, True)
    failed = output.events("save_failed")[0]
    assert (failed["step"], failed["saved"], failed["free"]) == (200, 100, 0)
    assert failed["path"] == str(disk / "checkpoints")
    assert failed["cause"] == "No space left on device"
    assert "step 200 could not be saved to" in render(failed)
    first, retried, last = [event["step"] for event in output.events("checkpoint")]
    assert (first, last) == (100, 300)
    assert 210 <= retried < 300, "the save was not tried again before the next one was due"
    assert saved(disk) == [retried, last]
    assert [evaluation.step for evaluation in evaluations.read(disk)] == [150, 300]
    (log,) = (disk / "logs" / "train").iterdir()
    assert [event.step for event in summaries(log)] == [*range(10, 301, 10)]
    assert any("can be saved again" in event["message"] for event in output.events("notice"))
    assert not list(disk.glob("checkpoints/*.part"))


@pytest.mark.usefixtures("fast_retries")
def test_a_read_only_volume_keeps_the_last_checkpoint_and_the_last_state_is_saved_once_it_is_writable(disk: Path) -> None:
    def make_read_only_for_a_while() -> None:
        remount(disk, "ro")
        threading.Timer(1.5, remount, [disk, "rw"]).start()

    kind = session_with({29: make_read_only_for_a_while})
    _, outcome, output = train(disk, 30, {}, kind=kind, steps_per_execution=1, **ONLY_SAVED)
    assert outcome.step == 30
    (failed,) = output.events("save_failed")
    assert (failed["step"], failed["saved"], failed["cause"]) == (30, 20, "Read-only file system")
    assert saved(disk) == [20, 30]


def test_a_volume_that_does_not_answer_delays_no_step(freezable: Volume, monkeypatch: pytest.MonkeyPatch) -> None:
    timeouts, output = saving.Timeouts, Output()
    monkeypatch.setattr(loop, "Timeouts", lambda timeout, grace: timeouts(timeout, grace, silent=2.0))

    def failures() -> list[dict[str, Any]]:
        return [event for event in output.events("save_failed") if event["step"] == 20]

    def freeze() -> None:
        saving.wait_for_saves()
        freezable.freeze()

    def thaw() -> None:  # training has reached this step meanwhile
        until("the report of the failed save", failures, seen=output.getvalue)
        freezable.thaw()

    # The best model is exported after every evaluation, also the one while the volume does not answer.
    outcome = run(freezable.path, session_with({12: freeze, 45: thaw}), steps=60, output=output, export=Export(formats=["keras"]))
    assert outcome.step == 60
    assert output.events("exported")
    failed = failures()[0]
    assert (failed["saved"], failed["free"]) == (10, None)
    assert failed["cause"].startswith("it has not answered since ")
    assert saved(freezable.path)[-1] == 60
    assert [evaluation.step for evaluation in evaluations.read(freezable.path)] == [20, 40, 60]


@pytest.mark.usefixtures("fast_retries")
@pytest.mark.parametrize("save_ends", [True, False])
def test_a_task_that_a_lost_ps_ends_finishes_its_save_and_a_save_that_hangs_is_never_taken_as_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save_ends: bool
) -> None:
    half_written, resume, exits = threading.Event(), threading.Event(), list[list[str]]()

    class Paused(InMemoryCheckpoint):
        def chunks(self, name: str) -> Iterator[bytes]:
            for chunk in super().chunks(name):
                yield chunk[: len(chunk) // 2]
                half_written.set()
                resume.wait(60)
                yield chunk[len(chunk) // 2 :]

    class Slow(Checkpoints):
        def capture(self, *arguments: Any) -> InMemoryCheckpoint:
            return Paused(**vars(super().capture(*arguments)))

    state = model_ops.build(Small({}), small_config(1))
    checkpoints = Slow(tmp_path, state.model, state.optimizer, 3)
    saver = saving.Saver(checkpoints, Reporter("chief"), saving.Timeouts(silent=60.0 if save_ends else 0.5), lambda *_: None)
    monkeypatch.setattr(saving, "_savers", [saver])
    monkeypatch.setattr(os, "_exit", lambda code: exits.append([str(code), *list_checkpoints(tmp_path)]))
    assert saver.save(7)
    assert half_written.wait(60)
    if save_ends:
        threading.Timer(0.5, resume.set).start()
    try:
        server_watch.exit_process(Reporter("chief"), "ps-0 was lost")
        assert exits == [["75", *[str(tmp_path / "ckpt-7")] * save_ends]]
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path, copy, ignore=shutil.ignore_patterns(copy.name))
        restored = Checkpoints(copy, state.model, state.optimizer, 3).restore(print)
        assert (restored and restored.step) == (7 if save_ends else None)
        assert save_ends or not list(copy.glob("ckpt-*"))
    finally:
        resume.set()
        saver.wait()


def test_a_save_that_ends_while_it_is_reported_as_hanging_counts_as_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, output = threading.Event(), Output()

    def write(*_: Any) -> str:
        answers.wait(60)
        return "ckpt-7"

    def answer_now(*_: Any) -> str:
        answers.set()
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline and not output.events("checkpoint"):
            time.sleep(0.01)
        return "12:00:00"

    monkeypatch.setattr(Checkpoints, "write", write)
    monkeypatch.setattr(time, "strftime", answer_now)  # the reporting thread reads the time of day first
    state = model_ops.build(Small({}), small_config(1))
    checkpoints = Checkpoints(tmp_path, state.model, state.optimizer, 3)
    saver = saving.Saver(checkpoints, Reporter("chief", output), saving.Timeouts(silent=0.2), lambda *_: None)
    assert saver.save(7)
    until("the checkpoint", lambda: output.events("checkpoint"), seen=output.getvalue)
    until("the end of the report", lambda: output.events("save_failed"), seen=output.getvalue)
    kinds = [json.loads(line)["event"] for line in output.getvalue().splitlines()]
    assert kinds == ["save_failed", "notice", "checkpoint"]


def test_a_chief_that_lost_its_ps_ends_even_if_it_cannot_write_why(monkeypatch: pytest.MonkeyPatch) -> None:
    exits: list[int] = []
    monkeypatch.setattr(os, "_exit", exits.append)
    monkeypatch.setattr(saving, "wait_for_saves", lambda: None)
    with suppress(OSError), Path("/dev/full").open("w", encoding="utf-8", buffering=1) as full:
        monkeypatch.setattr(sys, "stderr", full)
        server_watch.exit_process(Reporter("chief"), "ps-0 was lost")
    assert exits == [75]


def test_the_fingerprint_of_a_lost_ps_is_the_start_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "_exit", lambda _: None)
    monkeypatch.setattr(saving, "wait_for_saves", lambda: None)
    monkeypatch.setenv(error_file.VARIABLE, str(tmp_path / "error"))
    report = Reporter("chief")
    report.start_step = 50
    server_watch.exit_process(report, "ps-0 was lost")
    assert error_file.last_line(tmp_path / "error") == "ps-0 was lost"
    assert error_file.fingerprint(tmp_path / "error") == f"{error_file.START_STEP_PREFIX}50"


def test_a_run_ends_when_no_save_succeeds_within_the_timeout(disk: Path) -> None:
    message = r"the last checkpoint is of step 10: nothing could be saved to .*checkpoints \(No space left on device\) for 3 s"
    with pytest.raises(SaveError, match=message):
        run(disk, session_with({12: lambda: fill(disk)}), save_timeout=3.0)
    assert saved(disk) == [10]


@pytest.mark.usefixtures("fast_retries")
def test_a_stop_on_a_full_disk_is_tried_for_the_grace_period_and_reports_what_is_lost(disk: Path) -> None:
    with pytest.raises(UnsavedStopError, match=r"asked to stop, and the last checkpoint is of step 10: .* for 0.5 s; later steps are lost"):
        run(disk, session_with({12: lambda: fill(disk)}), stop_after=15, grace_period=1.0)
    assert saved(disk) == [10]


def test_a_stop_ends_the_wait_for_a_save_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Waiting(ReplicatedSession):
        """Waits for its saves, as synchronous parameter servers with tables do."""

        tables: Any

        def begin_at(self, step: int) -> None:
            super().begin_at(step)
            self.tables = SimpleNamespace(blocked_while_saved=True)

    resume = threading.Event()
    monkeypatch.setattr(Checkpoints, "write", lambda *_: resume.wait(60))
    try:
        with pytest.raises(UnsavedStopError, match=r"asked to stop, and there is no checkpoint: .* for 0.1 s; later steps are lost"):
            run(tmp_path, Waiting, stop_after=10, grace_period=0.2)
    finally:
        resume.set()


@pytest.mark.usefixtures("fast_retries")
def test_a_stop_is_saved_once_space_is_free_within_the_grace_period(disk: Path) -> None:
    def fill_for_a_while() -> None:
        fill(disk)
        threading.Timer(1.5, (disk / "filler").unlink).start()

    outcome = run(disk, session_with({12: fill_for_a_while}), stop_after=15, grace_period=20.0)
    assert not outcome.finished
    assert saved(disk) == [10, outcome.step]


def run(
    run_dir: Path,
    kind: type[ReplicatedSession],
    stop_after: int | None = None,
    steps: int = 100_000,
    output: Output | None = None,
    **limits: Any,
) -> Any:
    """Train with limits, practically forever unless `steps` is given; return the outcome."""
    config = replace(settings(run_dir, steps, steps_per_execution=1), **limits)
    workload = Small({})
    session = kind(workload, config, AllReduce())
    should_stop = (lambda: session.step >= stop_after) if stop_after else (lambda: False)
    return loop.run(session, workload, config, Reporter("chief", output or Output()), should_stop)


def test_training_does_not_start_if_no_checkpoint_fits(disk: Path) -> None:
    fill(disk)
    with pytest.raises(CannotSaveError, match=r"has 0 bytes free, and a checkpoint of this model takes .* not one can be saved"):
        train(disk, 20, {})


def test_too_little_space_for_the_checkpoints_to_keep_is_reported(disk: Path) -> None:
    _, outcome, output = train(disk, 20, {}, **{**ONLY_SAVED, "checkpoint": {"every_steps": 10, "keep": 1000}})
    assert outcome.step == 20
    assert any("that train.checkpoint.keep asks for" in event["message"] for event in output.events("notice"))
    assert saved(disk) == [10, 20]


def test_training_does_not_start_if_no_checkpoint_can_be_written(disk: Path) -> None:
    (disk / "checkpoints").mkdir()
    remount(disk, "ro")
    for run_dir, message in (
        (disk, "is read-only, and not one checkpoint can be saved"),
        (disk / "run", "cannot be made: Read-only file system"),
    ):
        with pytest.raises(CannotSaveError, match=message):
            train(run_dir, 20, {})


@pytest.mark.usefixtures("fast_retries")
def test_a_run_resumes_from_its_checkpoints_while_nothing_can_be_written(disk: Path) -> None:
    train(disk, 20, {}, **ONLY_SAVED)
    (disk / "checkpoints" / "checkpoint").unlink()
    remount(disk, "ro")
    kind = session_with({35: lambda: remount(disk, "rw")})
    _, outcome, output = train(disk, 40, {}, kind=kind, steps_per_execution=1, **ONLY_SAVED)
    assert outcome.step == 40
    assert [event["step"] for event in output.events("restored")] == [20]
    assert any("is read-only: no checkpoint can be saved until" in event["message"] for event in output.events("notice"))
    assert saved(disk)[-1] == 40


def test_the_best_model_is_exported_in_every_format_once_space_is_free(disk: Path) -> None:
    output, model = Output(), Small({}).model()
    formats = Export(formats=["keras", "saved_model"])
    best = BestModel(formats, disk, ("loss",), model, Reporter("chief", output), share=1)
    fill(disk)
    best.offer(10, {"loss": 1.0}, model.weights)
    best.wait(10)  # until that export has failed
    (notice,) = output.events("notice")
    message = rf"{disk / 'export' / 'best'} could not be written: No space left on device: it takes [\d.]+ kB, and 0 bytes are free; it is tried again"
    assert re.fullmatch(message, notice["message"])
    assert list((disk / "export").iterdir()) == []  # the space is left to checkpoints
    best.offer(20, {"loss": 0.5}, model.weights)  # a better one waits for the earlier one
    (disk / "filler").unlink()
    best.finish(lambda: math.inf, finished=True)
    assert [event["step"] for event in output.events("exported")] == [10, 20]
    assert sorted(path.name for path in (disk / "export" / "best").iterdir()) == ["metrics.json", "model.keras", "saved_model"]
    assert len(list((disk / "export").glob("best-*"))) == 2  # readers may have the earlier one open
