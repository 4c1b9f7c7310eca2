"""A run of each strategy on a disk that is full for a while, read-only, frozen, and full for good: what is told, and that nothing saved is lost."""

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

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

AT_MOST = 120  # seconds; a deadline, not a measure
MORE = 30  # steps
AT_ONCE = 2  # runs
SIZE = 2_500_000  # bytes: of this model several hundred checkpoints

# Name -> strategy, roles, settings of `train`. With servers the chief saves what they hold.
SHAPES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "mirrored": ("mirrored", {"chief": {}}, {}),
    "multi-worker": ("multi_worker_mirrored", {"worker": {"replicas": 2}}, {}),
    "asynchronous": ("parameter_server", {"chief": {}, "ps": {}, "worker": {}}, {}),
    "synchronous": ("parameter_server", {"chief": {}, "ps": {}, "worker": {"replicas": 2}}, {"sync": {"replicas_to_aggregate": 1}}),
}
FAULTS = {"full": "No space left on device", "read-only": "Read-only file system", "frozen": "it has not answered since "}


@dataclass
class Life:
    """One run, and what was seen of it."""

    run: Run
    chief: str
    disk: Volume
    failed: dict[str, Event] = field(default_factory=dict)  # fault -> the first that was told of it, see is_disk_full
    saved_again: dict[str, Event] = field(default_factory=dict)
    seen: dict[str, Any] = field(default_factory=dict)

    def after(self, when: float, kind: str) -> list[Event]:
        return [event for event in self.run.events(self.chief, kind) if event["time"] > when]

    def wait(self, kind: str, when: float, such: Callable[[Event], bool] = bool) -> Event:
        found: list[Event] = self.run.until(f"{kind} of {self.run.name}", lambda: [*filter(such, self.after(when, kind))], AT_MOST)
        return found[0]

    def go_on(self) -> None:
        """Wait for further steps."""
        step = self.run.chief_step(self.chief)
        self.run.until("more steps", lambda: self.run.chief_step(self.chief) >= step + MORE, AT_MOST)

    def suffer(self) -> None:
        """Have the disk full and read-only for a while."""
        for fault, such in ("full", is_disk_full), ("read-only", bool):
            began = time.time()
            with self.disk.failing(fault):
                self.failed[fault] = self.wait("save_failed", began, such)
                self.go_on()
                ended = time.time()
            self.saved_again[fault] = self.wait("checkpoint", ended)

    def stop_frozen(self) -> None:
        """Have the disk frozen, stop the run, and have it answer again then."""
        began = time.time()
        self.disk.freeze()
        self.failed["frozen"] = self.wait("save_failed", began)
        self.go_on()
        self.seen["down"] = self.run.launcher("down", self.run.name, check=False, timeout=AT_MOST).stdout
        self.seen["stopped"] = self.run.status()
        self.disk.thaw()
        leftovers.assert_none(self.run.directory)
        # A process counts as gone whose last thread waits in the kernel: that makes its file when the disk answers, perhaps a moment later.
        self.run.until(f"remains in {self.disk.path}", lambda: [*self.disk.path.glob("ckpt-*.part")], AT_MOST)

    def fill_for_good(self) -> None:
        """Have the run go on, and the disk full from then on."""
        began = time.time()
        file = str(self.run.runs.parent / f"{self.run.name}.yaml")
        chosen = ("--set", "limits.save_timeout=3s", "--set", "train.checkpoint.keep=1000")
        self.run.launcher("up", file, "--resume", "--detach", *chosen)
        self.seen["restored"] = self.wait("restored", began)["step"]
        self.wait("checkpoint", began)
        self.seen["notices"] = [event["message"] for event in self.after(began, "notice")]
        self.disk.fill()
        self.seen["code"] = self.run.launcher("wait", self.run.name, check=False, timeout=AT_MOST).returncode
        self.seen["failed"] = self.run.status()
        self.seen["starts"] = len(self.after(began, "started"))
        self.seen["last"] = self.after(began, "checkpoint")[-1]["step"]
        leftovers.assert_none(self.run.directory)


def live(name: str, directory: Path) -> Life:
    strategy, roles, train = SHAPES[name]
    chief = "worker-0" if "chief" not in roles else "chief"
    spec = {"version": 1, "name": name, "strategy": strategy, "roles": roles, "limits": {"grace_period": "14s"}}
    spec |= paced(checkpoint={"every_steps": 25, "keep": 3}, report_every_steps=5, **train)
    with volume(directory / "runs" / name / "checkpoints", directory / "image", SIZE) as disk, started(spec, directory) as run:
        life = Life(run, chief, disk)
        life.wait("checkpoint", 0)
        life.suffer()
        life.stop_frozen()
        life.fill_for_good()
        life.seen["checkpoints"] = {step: updates(run, step) for step in checkpoints(run.directory)}
        return life


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Life]]]:
    forked.launcher("--version", preload=forked.TENSORFLOW)  # what forks the others is there before two ask for it
    with ThreadPoolExecutor(AT_ONCE) as pool:  # each waits most of the time
        yield {name: pool.submit(live, name, tmp_path_factory.mktemp(name)) for name in SHAPES}


@pytest.fixture(params=SHAPES)
def life(lives: dict[str, Future[Life]], request: pytest.FixtureRequest) -> Life:
    return lives[request.param].result()


def test_each_failure_is_told_with_path_and_free_bytes(life: Life) -> None:
    for fault, cause in FAULTS.items():
        event = life.failed[fault]
        assert event["cause"].startswith(cause)
        assert (event["path"], event["free"] is None) == (str(life.disk.path), fault == "frozen")
        assert event["saved"] < event["step"]
    assert life.failed["full"]["free"] < life.failed["full"]["size"]


def test_later_steps_are_saved_when_that_works_again(life: Life) -> None:
    for fault, event in life.saved_again.items():
        assert event["step"] > life.failed[fault]["step"]


def test_a_stop_on_a_frozen_disk_says_what_is_lost(life: Life) -> None:
    (chief,) = (task for task in life.seen["stopped"]["tasks"] if task["name"] == life.chief)
    assert f"the last checkpoint is of step {life.failed['frozen']['saved']}" in chief["reason"]
    assert "it has not answered since" in chief["reason"]
    assert "later steps are lost" in chief["reason"]
    assert chief["exit_code"] == 1


def test_a_run_goes_on_from_the_last_checkpoint_and_removes_what_is_not_whole(life: Life) -> None:
    assert life.seen["restored"] == life.failed["frozen"]["saved"]
    assert any("remains of checkpoints that were never complete are removed" in message for message in life.seen["notices"])
    assert not list(life.disk.path.glob("*.part"))


def test_a_disk_without_room_for_all_that_are_to_be_kept_is_told_before_the_first_step(life: Life) -> None:
    (told,) = (message for message in life.seen["notices"] if "train.checkpoint.keep" in message)
    assert "of the 1000 that train.checkpoint.keep asks for" in told


def test_a_disk_that_stays_full_ends_the_run_with_that_reason_and_keeps_the_last_checkpoint(life: Life) -> None:
    failed = life.seen["failed"]
    assert (life.seen["code"], failed["state"], life.seen["starts"]) == (1, "failed", 1)
    reason = f"the last checkpoint is of step {life.seen['last']}: nothing could be saved to {life.disk.path} (No space left on device)"
    assert reason in failed["reason"]
    assert next(task["exit_code"] for task in failed["tasks"] if task["name"] == life.chief) == 2
    assert list(life.seen["checkpoints"])[-1] == life.seen["last"]
    assert all(step == done for step, done in life.seen["checkpoints"].items())
