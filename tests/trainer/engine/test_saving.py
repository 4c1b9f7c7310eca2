"""Saves on volumes that are full, read-only or do not answer: training goes on, it is said at once, and nothing is lost."""

import math
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.trainer.engine.small import Small, small_job
from tests.trainer.engine.test_loop import Output, settings, train
from tests.volumes import Volume, volume
from tests.waiting import until
from trainer.engine import evaluations, loop, model_ops, saving
from trainer.engine.checkpoints import Checkpoints, InMemoryCheckpoint, NoSpaceError, list_checkpoints
from trainer.engine.collectives.all_reduce import AllReduce
from trainer.engine.export import BestModel
from trainer.engine.parameter_server import server_watch
from trainer.engine.replicated import LocalSession
from trainer.engine.session import SaveError, StopError
from trainer.events import Reporter, render
from trainer.settings import Export


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MB, in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", place], check=False).returncode:
        pytest.skip("only root can mount a disk of the test's own")
    yield place
    subprocess.run(["mount", "-o", "remount,rw", place], check=True)
    subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Volume]:
    with volume(tmp_path / "disk", tmp_path / "image") as disk:
        yield disk


def fill(disk: Path) -> None:
    """Wait for saves that are under way, then leave no byte."""
    saving.wait_for_saves()
    with (disk / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass


def remount(disk: Path, how: str) -> None:
    saving.wait_for_saves()
    subprocess.run(["mount", "-o", f"remount,{how}", disk], check=True)


class Watched(LocalSession):
    """Calls `at[step]` once the step is done, and takes a while for each."""

    at: dict[int, Callable[[], None]]

    def run(self, steps: int, **words: Any) -> Any:
        progress = super().run(steps, **words)
        time.sleep(0.02)
        self.at.get(progress.step, lambda: None)()
        return progress


def watched(**at: Callable[[], None]) -> type[LocalSession]:
    class One(Watched):
        pass

    One.at = {int(step.removeprefix("s")): action for step, action in at.items()}
    return One


def saved(run_dir: Path) -> list[int]:
    return [int(path.rpartition("-")[2]) for path in list_checkpoints(run_dir / "checkpoints")]


def summaries(log: Path) -> list[Any]:
    """Return the events of a file that have a loss."""
    events = tf.compat.v1.train.summary_iterator(str(log))
    return [event for event in events if any(value.tag == "loss" for value in event.summary.value)]


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries come soon."""
    usual = saving.Timeouts
    monkeypatch.setattr(loop, "Timeouts", lambda timeout, grace: usual(timeout, grace, retry_delay=0.05))


@pytest.mark.usefixtures("hurried")
def test_a_full_disk_stops_no_training_and_is_told_with_path_and_free_bytes(disk: Path) -> None:
    kind = watched(s110=lambda: fill(disk), s210=(disk / "filler").unlink)
    every: dict[str, Any] = {"checkpoint": {"every_steps": 100, "keep": 2}, "evaluate": {"every_steps": 150}}
    _, outcome, output = train(disk, 300, kind=kind, steps_per_execution=1, **every)
    assert (outcome.step, outcome.finished) == (300, True)
    failed = output.events("save_failed")[0]
    assert (failed["step"], failed["saved"], failed["free"]) == (200, 100, 0)
    assert failed["path"] == str(disk / "checkpoints")
    assert failed["cause"] == "No space left on device"
    assert "step 200 could not be saved to" in render(failed)
    first, again, last = [event["step"] for event in output.events("checkpoint")]
    assert (first, last) == (100, 300)
    assert 210 <= again < 300, "it was not tried again before the next one was due"
    assert saved(disk) == [again, last]
    assert [one.step for one in evaluations.read(disk)] == [150, 300]
    (log,) = (disk / "logs" / "train").iterdir()
    assert [event.step for event in summaries(log)] == [*range(10, 301, 10)]
    assert any("can be saved again" in event["message"] for event in output.events("notice"))
    assert not list(disk.glob("checkpoints/*.part"))


@pytest.mark.usefixtures("hurried")
def test_a_read_only_volume_keeps_the_last_checkpoint_and_the_last_state_is_saved_when_it_is_back(disk: Path) -> None:
    def later() -> None:
        remount(disk, "ro")
        threading.Timer(1.5, remount, [disk, "rw"]).start()

    _, outcome, output = train(disk, 30, kind=watched(s29=later), steps_per_execution=1)
    assert outcome.step == 30
    (failed,) = output.events("save_failed")
    assert (failed["step"], failed["saved"], failed["cause"]) == (30, 20, "Read-only file system")
    assert saved(disk) == [20, 30]


def test_a_volume_that_does_not_answer_holds_up_no_step(frozen: Volume, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, output = saving.Timeouts, Output()
    monkeypatch.setattr(loop, "Timeouts", lambda timeout, grace: usual(timeout, grace, silent=2.0))

    def told() -> list[dict[str, Any]]:
        return [event for event in output.events("save_failed") if event["step"] == 20]

    def freeze() -> None:
        saving.wait_for_saves()
        frozen.freeze()

    def thaw() -> None:  # training has come so far meanwhile
        until("the volume to be told of", told, seen=output.getvalue)
        frozen.thaw()

    # Its best model is exported, of every evaluation, also the one while nothing answers.
    outcome = run(frozen.path, watched(s12=freeze, s45=thaw), steps=60, output=output, export=Export(formats=["keras"]))
    assert outcome.step == 60
    assert output.events("exported")
    failed = told()[0]
    assert (failed["saved"], failed["free"]) == (10, None)
    assert failed["cause"].startswith("it has not answered since ")
    assert saved(frozen.path)[-1] == 60
    assert [one.step for one in evaluations.read(frozen.path)] == [20, 40, 60]


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("ends", [True, False])
def test_a_task_that_a_lost_ps_ends_lets_its_save_end_and_one_that_hangs_is_never_taken_for_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    begun, goes_on, left = threading.Event(), threading.Event(), list[list[str]]()

    class Held(InMemoryCheckpoint):
        def chunks(self, name: str) -> Iterator[bytes]:
            for chunk in super().chunks(name):
                yield chunk[: len(chunk) // 2]
                begun.set()
                goes_on.wait(60)
                yield chunk[len(chunk) // 2 :]

    class Slow(Checkpoints):
        def capture(self, *of: Any) -> InMemoryCheckpoint:
            return Held(**vars(super().capture(*of)))

    state = model_ops.build(Small({}), small_job(1))
    checkpoints = Slow(tmp_path, state.model, state.optimizer, 3)
    saver = saving.Saver(checkpoints, Reporter("chief"), saving.Timeouts(silent=60.0 if ends else 0.5), lambda *_: None)
    monkeypatch.setattr(saving, "_savers", [saver])
    monkeypatch.setattr(os, "_exit", lambda code: left.append([str(code), *list_checkpoints(tmp_path)]))
    assert saver.save(7)
    assert begun.wait(60)
    if ends:
        threading.Timer(0.5, goes_on.set).start()
    try:
        server_watch.exit_process(Reporter("chief"), "ps-0 was lost")
        assert left == [["75", *[str(tmp_path / "ckpt-7")] * ends]]
        copy = tmp_path / "as it is left"
        shutil.copytree(tmp_path, copy, ignore=shutil.ignore_patterns(copy.name))
        restored = Checkpoints(copy, state.model, state.optimizer, 3).restore(print)
        assert (restored and restored.step) == (7 if ends else None)
        assert ends or not list(copy.glob("ckpt-*"))
    finally:
        goes_on.set()
        saver.wait()


def test_a_run_ends_when_nothing_could_be_saved_for_the_timeout(disk: Path) -> None:
    told = r"the last checkpoint is of step 10: nothing could be saved to .*checkpoints \(No space left on device\) for 3 s"
    with pytest.raises(SaveError, match=told):
        run(disk, watched(s12=lambda: fill(disk)), save_timeout=3.0)
    assert saved(disk) == [10]


@pytest.mark.usefixtures("hurried")
def test_a_stop_on_a_full_disk_tries_for_the_grace_period_and_says_what_is_lost(disk: Path) -> None:
    with pytest.raises(StopError, match=r"asked to stop, and the last checkpoint is of step 10: .* for 0.5 s; later steps are lost"):
        run(disk, watched(s12=lambda: fill(disk)), stop_after=15, grace_period=1.0)
    assert saved(disk) == [10]


@pytest.mark.usefixtures("hurried")
def test_a_stop_is_saved_when_there_is_room_again_within_the_grace_period(disk: Path) -> None:
    def later() -> None:
        fill(disk)
        threading.Timer(1.5, (disk / "filler").unlink).start()

    outcome = run(disk, watched(s12=later), stop_after=15, grace_period=20.0)
    assert not outcome.finished
    assert saved(disk) == [10, outcome.step]


def run(
    run_dir: Path,
    kind: type[LocalSession],
    stop_after: int | None = None,
    steps: int = 100_000,
    output: Output | None = None,
    **limits: Any,
) -> Any:
    """Train with limits, for very long unless `steps` say otherwise; return the outcome."""
    chosen = settings(run_dir, steps, steps_per_execution=1)
    chosen = type(chosen)(**{**vars(chosen), **limits})
    workload = Small({})
    session = kind(workload, chosen, AllReduce())
    stopped = (lambda: session.step >= stop_after) if stop_after else (lambda: False)
    return loop.run(session, workload, chosen, Reporter("chief", output or Output()), stopped)


def test_nothing_is_trained_where_not_one_checkpoint_fits(disk: Path) -> None:
    fill(disk)
    with pytest.raises(NoSpaceError, match=r"has 0 bytes free, and a checkpoint of this model takes .* not one can be saved"):
        train(disk, 20)


def test_room_for_fewer_checkpoints_than_are_to_be_kept_is_told(disk: Path) -> None:
    _, outcome, output = train(disk, 20, checkpoint={"every_steps": 10, "keep": 1000})
    assert outcome.step == 20
    assert any("that train.checkpoint.keep asks for" in event["message"] for event in output.events("notice"))
    assert saved(disk) == [10, 20]


def test_nothing_is_trained_where_no_checkpoint_can_be_written(disk: Path) -> None:
    (disk / "checkpoints").mkdir()
    remount(disk, "ro")
    for run_dir, told in (
        (disk, "is read-only, and not one checkpoint can be saved"),
        (disk / "run", "cannot be made: Read-only file system"),
    ):
        with pytest.raises(NoSpaceError, match=told):
            train(run_dir, 20)


@pytest.mark.usefixtures("hurried")
def test_a_run_goes_on_from_its_checkpoints_while_nothing_can_be_written(disk: Path) -> None:
    train(disk, 20)
    (disk / "checkpoints" / "checkpoint").unlink()
    remount(disk, "ro")
    _, outcome, output = train(disk, 40, kind=watched(s35=lambda: remount(disk, "rw")), steps_per_execution=1)
    assert outcome.step == 40
    assert [event["step"] for event in output.events("restored")] == [20]
    assert any("is read-only: no checkpoint can be saved until" in event["message"] for event in output.events("notice"))
    assert saved(disk)[-1] == 40


def test_the_best_model_is_exported_when_there_is_room_again_in_every_format(disk: Path) -> None:
    output, model = Output(), Small({}).model()
    formats = Export(formats=["keras", "saved_model"])
    best = BestModel(formats, disk, ("loss",), model, Reporter("chief", output), share=1)
    fill(disk)
    best.offer(10, {"loss": 1.0}, model.weights)
    best.wait(10)  # until that has failed
    (notice,) = output.events("notice")
    told = rf"{disk / 'export' / 'best'} could not be written: No space left on device: it takes [\d.]+ kB, and 0 bytes are free; it is tried again"
    assert re.fullmatch(told, notice["message"])
    assert list((disk / "export").iterdir()) == []  # nothing takes room from checkpoints
    best.offer(20, {"loss": 0.5}, model.weights)  # a better one waits for the one before
    (disk / "filler").unlink()
    best.finish(lambda: math.inf, finished=True)
    assert [event["step"] for event in output.events("exported")] == [10, 20]
    assert sorted(path.name for path in (disk / "export" / "best").iterdir()) == ["metrics.json", "model.keras", "saved_model"]
    assert len(list((disk / "export").glob("best-*"))) == 2  # readers may have the one before open
