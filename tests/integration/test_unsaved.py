"""A run of each strategy on a disk that is full for a while, read-only, frozen, and full to the end: it reports that, and loses no checkpoint."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.integration import leftovers
from tests.integration.running import Run, checkpoints, paced, started, updates
from tests.volumes import Volume, is_disk_full, volume
from trainer.events import Event

pytestmark = pytest.mark.slow

MORE_STEPS = 30
AT_ONCE = 2  # runs
SIZE = 2_500_000  # bytes: several hundred checkpoints of this model

# Name -> strategy, roles, settings of `train`. With servers the chief saves what they hold.
SHAPES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "mirrored": ("mirrored", {"chief": {}}, {}),
    "multi-worker": ("multi_worker_mirrored", {"worker": {"replicas": 2}}, {}),
    "asynchronous": ("parameter_server", {"chief": {}, "ps": {}, "worker": {}}, {}),
    "synchronous": ("parameter_server", {"chief": {}, "ps": {}, "worker": {"replicas": 2}}, {"sync": {"replicas_to_aggregate": 1}}),
}
FAULTS = {"full": "No space left on device", "read-only": "Read-only file system", "frozen": "it has not answered since "}


@dataclass
class ObservedRun:
    """One run, and what was observed of it."""

    run: Run
    chief: str
    disk: Volume
    failed: dict[str, Event] = field(default_factory=dict)  # fault -> the first event that reports it, see is_disk_full
    saved_again: dict[str, Event] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)

    def after(self, when: float, kind: str) -> list[Event]:
        return [event for event in self.run.events(self.chief, kind) if event["time"] > when]

    def wait(self, kind: str, when: float, matches: Callable[[Event], bool] = bool) -> Event:
        events: list[Event] = self.run.until(f"{kind} of {self.run.name}", lambda: [*filter(matches, self.after(when, kind))])
        return events[0]

    def await_steps(self) -> None:
        """Wait for further steps."""
        step = self.run.chief_step(self.chief)
        self.run.until("more steps", lambda: self.run.chief_step(self.chief) >= step + MORE_STEPS)

    def fail_for_a_while(self) -> None:
        """Have the disk full and read-only for a while."""
        for fault, matches in ("full", is_disk_full), ("read-only", bool):
            began = time.time()
            with self.disk.failing(fault):
                self.failed[fault] = self.wait("save_failed", began, matches)
                self.await_steps()
                ended = time.time()
            self.saved_again[fault] = self.wait("checkpoint", ended)

    def stop_frozen(self) -> None:
        """Freeze the disk, stop the run, and thaw the disk."""
        began = time.time()
        self.disk.freeze()
        self.failed["frozen"] = self.wait("save_failed", began)
        self.await_steps()
        self.run.launcher("down", self.run.name, check=False)
        self.notes["stopped"] = self.run.status()
        self.disk.thaw()
        leftovers.assert_none(self.run.directory)
        # A process counts as ended while its last thread waits in the kernel; that thread creates its file only when the disk answers.
        self.run.until(f"remains in {self.disk.path}", lambda: [*self.disk.path.glob("ckpt-*.part")])

    def resume_and_fill(self) -> None:
        """Resume the run, and fill the disk until it fails."""
        began = time.time()
        file = str(self.run.runs.parent / f"{self.run.name}.yaml")
        settings = ("--set", "limits.save_timeout=3s", "--set", "train.checkpoint.keep=1000")
        self.run.launcher("up", file, "--resume", "--detach", *settings)
        self.notes["restored"] = self.wait("restored", began)["step"]
        self.wait("checkpoint", began)
        self.notes["notices"] = [event["message"] for event in self.after(began, "notice")]
        self.disk.fill()
        self.notes["code"] = self.run.launcher("wait", self.run.name, check=False).returncode
        self.notes["failed"] = self.run.status()
        self.notes["starts"] = len(self.after(began, "started"))
        self.notes["last"] = self.after(began, "checkpoint")[-1]["step"]
        leftovers.assert_none(self.run.directory)


def observe(name: str, directory: Path) -> ObservedRun:
    strategy, roles, train = SHAPES[name]
    chief = "worker-0" if "chief" not in roles else "chief"
    spec = {"version": 1, "name": name, "strategy": strategy, "roles": roles, "limits": {"grace_period": "14s"}}
    spec |= paced(checkpoint={"every_steps": 25, "keep": 3}, report_every_steps=5, **train)
    with volume(directory / "runs" / name / "checkpoints", directory / "image", SIZE) as disk, started(spec, directory) as run:
        observed = ObservedRun(run, chief, disk)
        observed.wait("checkpoint", 0)
        observed.fail_for_a_while()
        observed.stop_frozen()
        observed.resume_and_fill()
        observed.notes["checkpoints"] = {step: updates(run, step) for step in checkpoints(run.directory)}
        return observed


@pytest.fixture(scope="module")
def observed_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[ObservedRun]]]:
    forked.launcher("--version", preload=forked.TENSORFLOW)  # starts the server that forks the others, before two runs need it
    with ThreadPoolExecutor(AT_ONCE) as pool:  # each waits most of the time
        yield {name: pool.submit(observe, name, tmp_path_factory.mktemp(name)) for name in SHAPES}


@pytest.fixture(params=SHAPES)
def observed(observed_runs: dict[str, Future[ObservedRun]], request: pytest.FixtureRequest) -> ObservedRun:
    return observed_runs[request.param].result()


def test_each_failure_is_reported_with_path_and_free_bytes(observed: ObservedRun) -> None:
    for fault, cause in FAULTS.items():
        event = observed.failed[fault]
        assert event["cause"].startswith(cause)
        assert (event["path"], event["free"] is None) == (str(observed.disk.path), fault == "frozen")
        assert event["saved"] < event["step"]
    assert observed.failed["full"]["free"] < observed.failed["full"]["size"]


def test_later_steps_are_saved_when_the_disk_works_again(observed: ObservedRun) -> None:
    for fault, event in observed.saved_again.items():
        assert event["step"] > observed.failed[fault]["step"]


def test_a_stop_on_a_frozen_disk_reports_the_loss_of_steps(observed: ObservedRun) -> None:
    (chief,) = (task for task in observed.notes["stopped"]["tasks"] if task["name"] == observed.chief)
    assert f"the last checkpoint is of step {observed.failed['frozen']['saved']}" in chief["reason"]
    assert "it has not answered since" in chief["reason"]
    assert "later steps are lost" in chief["reason"]
    assert chief["exit_code"] == 1


def test_a_run_resumes_from_the_last_checkpoint_and_removes_incomplete_ones(observed: ObservedRun) -> None:
    assert observed.notes["restored"] == observed.failed["frozen"]["saved"]
    assert any("remains of checkpoints that were never complete are removed" in message for message in observed.notes["notices"])
    assert not list(observed.disk.path.glob("*.part"))


def test_a_disk_without_room_for_all_kept_checkpoints_is_reported_before_the_first_step(observed: ObservedRun) -> None:
    (message,) = (message for message in observed.notes["notices"] if "train.checkpoint.keep" in message)
    assert "of the 1000 that train.checkpoint.keep asks for" in message


def test_a_disk_that_stays_full_ends_the_run_with_that_reason_and_keeps_the_last_checkpoint(observed: ObservedRun) -> None:
    failed = observed.notes["failed"]
    assert (observed.notes["code"], failed["state"], observed.notes["starts"]) == (1, "failed", 1)
    reason = (
        f"the last checkpoint is of step {observed.notes['last']}: nothing could be saved to {observed.disk.path} (No space left on device)"
    )
    assert reason in failed["reason"]
    assert next(task["exit_code"] for task in failed["tasks"] if task["name"] == observed.chief) == 2
    assert list(observed.notes["checkpoints"])[-1] == observed.notes["last"]
    assert all(step == count for step, count in observed.notes["checkpoints"].items())
