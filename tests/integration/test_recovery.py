"""Kills tasks of real clusters midway, one after the other in the same run: it goes on from where it has to, stops and ends complete."""

import os
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.integration import leftovers
from tests.integration.running import Run, checkpoints, kill_with_parent, paced, pid_of, started, stop, updates
from tests.trainer.test_socket_filter import address_for_others, reachable
from trainer.events import Event

SAVE_EVERY = 50
MORE = 60  # steps that a run makes after a fault before the next, and after it is resumed
AT_MOST = 180  # seconds; a deadline, not a measure
CHECKPOINT = {"every_steps": SAVE_EVERY, "keep": 3}


@dataclass
class Life:
    """One run and what was seen of it."""

    run: Run
    chief: str
    restored: dict[str, Event] = field(default_factory=dict)
    saved_before: dict[str, int] = field(default_factory=dict)
    killed: dict[str, float] = field(default_factory=dict)
    seen: dict[str, Any] = field(default_factory=dict)
    stopped_at: int = 0
    stopping: float = 0

    def checkpoints(self) -> list[Event]:
        return self.run.events(self.chief, "checkpoint")

    def after(self, when: float, kind: str, task: str = "") -> list[Event]:
        return [event for event in self.run.events(task or self.chief, kind) if event["time"] > when]

    def save_twice(self) -> None:
        """Wait for two checkpoints of this attempt."""

        def saved() -> bool:
            attempts = self.run.events(self.chief, "started")
            return bool(attempts) and len(self.after(attempts[-1]["time"], "checkpoint")) >= 2

        self.run.until("two checkpoints", saved, AT_MOST)

    def lose(self, victim: str, how: str = "") -> None:
        """Kill a training process after two checkpoints; wait until the chief has restored one and steps flow again."""
        self.save_twice()
        name = how or victim
        self.killed[name] = time.time()
        self.saved_before[name] = self.checkpoints()[-1]["step"]
        if how:
            kill_with_parent(self.run, victim)
        else:
            self.run.kill_training_process(victim)
        restored = self.run.until(f"the checkpoint, {name} killed", lambda: self.after(self.killed[name], "restored"), AT_MOST)[-1]
        self.restored[name] = restored
        first = self.run.until(f"steps to flow again, {name} killed", lambda: self.after(restored["time"], "progress"), AT_MOST)[0]
        print(f"\n{self.run.name}: {name} killed, steps again after {first['time'] - self.killed[name]:.1f} s")

    def drain(self, task: str) -> None:
        """Ask a task alone to stop, after two checkpoints and a step that is not saved; wait until the chief has restored one."""
        self.save_twice()
        self.run.until("a step that is not saved", lambda: self.run.chief_step(self.chief) > self.checkpoints()[-1]["step"], AT_MOST)
        asked = time.time()
        os.kill(pid_of(self.run, task), signal.SIGTERM)
        self.restored["asked"] = self.run.until("it to go on", lambda: self.after(asked, "restored"), AT_MOST)[0]
        self.seen["asked"] = [e for e in self.checkpoints() if e["time"] < self.restored["asked"]["time"]][-1]["step"]

    def contributes(self, worker: str, attempt: int) -> None:
        """Wait until a worker of servers, started once more, has added more than was under way before."""
        begun = self.run.until(f"{worker} to start again", lambda: self.run.events(worker, "started")[attempt:], AT_MOST)[0]["time"]
        before = max(event["local_step"] for event in self.told_of(worker) if event["time"] <= begun)

        def more() -> bool:
            return any(event["time"] > begun and event["local_step"] > before + MORE for event in self.told_of(worker))

        self.run.until(f"{worker} to contribute again", more, AT_MOST)

    def told_of(self, worker: str) -> list[Event]:
        """Return the progress of a worker of servers, of which the chief tells."""
        return [event for event in self.run.events(self.chief, "progress") if event["task"] == worker]

    def end(self) -> None:
        """Stop the run, and have it go on to its end, a little later."""
        self.save_twice()
        self.stopping = time.time()
        self.stopped_at = stop(self.run)
        self.seen["saved at the stop"] = {step: updates(self.run, step) for step in checkpoints(self.run.directory)}
        file = str(self.run.runs.parent / f"{self.run.name}.yaml")
        again = self.run.launcher("up", file, "--resume", "--set", f"train.steps={self.stopped_at + MORE}", timeout=AT_MOST, check=False)
        assert again.returncode == 0, again.stdout + again.stderr
        leftovers.assert_none(self.run.directory)

    def causes(self, task: str) -> list[str]:
        return [restart["cause"] for of in self.seen["status"]["tasks"] if of["name"] == task for restart in of["restarts"]]


def spec(name: str, strategy: str, roles: dict[str, Any]) -> dict[str, Any]:
    return {"version": 1, "name": name, "strategy": strategy, "roles": roles, **paced(checkpoint=CHECKPOINT, report_every_steps=10)}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Life:
    """Parameter servers that lose a worker, a worker with its parent, a server that is asked to stop, one more and the chief, stop and go on."""
    with started(
        spec("served", "parameter_server", {"chief": {}, "ps": {}, "worker": {"replicas": 2}}), tmp_path_factory.mktemp("served")
    ) as run:
        life = Life(run, "chief")
        life.save_twice()
        life.seen["ports"] = {task["name"]: int(task["address"].rpartition(":")[2]) for task in run.status()["tasks"]}
        life.seen["own"] = {port: reachable("127.0.0.1", port) for port in life.seen["ports"].values()}
        others = address_for_others()
        life.seen["others"] = {port: reachable(others, port) for port in life.seen["ports"].values()} if others else None
        run.until("worker-1 to contribute", lambda: life.told_of("worker-1"), AT_MOST)  # the chief and worker-0 may have saved alone
        run.kill_training_process("worker-1")
        life.contributes("worker-1", 1)
        parent = kill_with_parent(run, "worker-1")
        run.until("another parent", lambda: pid_of(run, "worker-1") not in (None, parent), AT_MOST)
        life.contributes("worker-1", 2)
        life.seen["with workers lost"] = {kind: run.events("chief", kind) for kind in ("started", "restored", "progress")}
        life.seen["status with workers lost"] = run.status()
        life.drain("ps-0")
        life.lose("ps-0")
        life.lose("chief")
        life.seen["status"] = run.status()
        life.end()
    return life


@pytest.fixture(scope="module")
def all_reduce(tmp_path_factory: pytest.TempPathFactory) -> Life:
    """Workers of an all-reduce: one is asked to stop alone, each is killed, one with its parent; then all stop and go on."""
    with started(spec("in-step", "multi_worker_mirrored", {"worker": {"replicas": 2}}), tmp_path_factory.mktemp("in-step")) as run:
        life = Life(run, "worker-0")
        life.drain("worker-1")
        life.lose("worker-1")
        life.lose("worker-0")
        life.lose("worker-0", "worker-0 and its parent")
        life.seen["status"] = run.status()
        life.end()
    return life


def assert_gone_on_from_a_checkpoint(life: Life, victim: str) -> None:
    """Check that once was restored the last save, or one that was under way, and nothing before it was counted again."""
    restored = life.restored[victim]
    killed = life.killed[victim]
    next_fault = min(when for when in (*life.killed.values(), life.stopping) if when > killed)
    assert [e["step"] for e in life.after(killed, "restored") if e["time"] < next_fault] == [restored["step"]]
    told = [e["step"] for e in life.checkpoints() if e["time"] < restored["time"]]
    # The chief may have saved once more between our look and the kill, and not have told of it yet; never is an older one taken.
    assert life.saved_before[victim] <= told[-1] <= restored["step"] <= told[-1] + 2 * SAVE_EVERY
    later = [e["time"] for e in life.run.events(life.chief, "restored") if e["time"] > restored["time"]]
    of_it = [e for e in life.after(restored["time"], "progress") if e["time"] < later[0] and e["task"] == life.chief]
    assert min(e["step"] for e in of_it) > restored["step"]


def assert_stopped_and_complete(life: Life) -> None:
    status = life.run.status()
    end = life.stopped_at + MORE
    assert (status["state"], status["step"], checkpoints(life.run.directory)[-1]) == ("succeeded", end, end)
    assert status["metrics"]["accuracy"] >= 0.9
    assert all(task["restarts"] == [] for task in status["tasks"])
    restored = life.run.events(life.chief, "restored")[-1]
    assert restored["step"] == life.stopped_at
    before = [
        e["step"] for e in life.run.events(life.chief, "progress") if life.restored[_last(life)]["time"] < e["time"] < restored["time"]
    ]
    after = [e["step"] for e in life.after(restored["time"], "progress") if e["task"] == life.chief]
    assert max(before) <= life.stopped_at < min(after)
    assert life.seen["saved at the stop"] == {step: step for step in life.seen["saved at the stop"]}
    assert updates(life.run, end) == end


def _last(life: Life) -> str:
    return list(life.restored)[-1]


pytestmark = pytest.mark.timeout(600)


@pytest.mark.skipif(sys.platform != "linux", reason="socket filters are Linux's; docs/architecture.md says what to do elsewhere")
def test_no_task_is_reached_from_other_machines(served: Life) -> None:
    if served.seen["others"] is None:
        pytest.skip("this machine has no address but loopback")
    assert sorted(served.seen["ports"]) == ["chief", "ps-0", "worker-0", "worker-1"]
    assert set(served.seen["own"].values()) == {True}
    assert set(served.seen["others"].values()) == {False}


def test_a_worker_of_parameter_servers_comes_back_alone(served: Life) -> None:
    seen = served.seen["with workers lost"]
    assert seen["restored"] == []
    assert len(seen["started"]) == 1
    steps = [event["step"] for event in seen["progress"] if event["task"] == "chief"]
    assert steps == sorted(steps)
    assert [task["name"] for task in served.seen["status with workers lost"]["tasks"] if task["restarts"]] == ["worker-1"]


def test_a_worker_killed_with_its_parent_is_brought_back_by_the_launcher(served: Life) -> None:
    # The second parent counts its attempts from 1.
    assert [event["attempt"] for event in served.run.events("worker-1", "started")][:3] == [1, 2, 1]
    assert sum("SIGKILL" in cause for cause in served.causes("worker-1")) == 2


@pytest.mark.parametrize("victim", ["ps-0", "chief"])
def test_without_a_server_or_the_chief_training_resumes_from_the_last_checkpoint(served: Life, victim: str) -> None:
    assert_gone_on_from_a_checkpoint(served, victim)
    assert any("SIGKILL" in cause for cause in served.causes(victim)), served.causes(victim)


def test_a_stopped_run_of_servers_goes_on_from_exactly_there_to_its_end(served: Life) -> None:
    assert_stopped_and_complete(served)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["worker-1", "worker-0", "worker-0 and its parent"])
def test_without_one_task_of_an_all_reduce_training_resumes_from_the_last_checkpoint(all_reduce: Life, victim: str) -> None:
    assert_gone_on_from_a_checkpoint(all_reduce, victim)
    task = victim.partition(" ")[0]
    assert any("SIGKILL" in cause for cause in all_reduce.causes(task)), all_reduce.causes(task)
    of_the_other = [restart["exit_code"] for of in all_reduce.seen["status"]["tasks"] if of["name"] != task for restart in of["restarts"]]
    assert 75 in of_the_other


def assert_no_step_was_lost(life: Life) -> None:
    restored = life.restored["asked"]
    assert restored["step"] == life.seen["asked"]
    told = [e["step"] for e in life.run.events(life.chief, "progress") if e["task"] == life.chief and e["time"] < restored["time"]]
    assert max(told) <= restored["step"]


def restarts(life: Life) -> dict[str, list[int]]:
    return {task["name"]: [restart["exit_code"] for restart in task["restarts"]] for task in life.seen["status"]["tasks"]}


def test_a_ps_that_is_asked_to_stop_alone_costs_no_step(served: Life) -> None:
    assert_no_step_was_lost(served)
    # Asked, killed; and nobody was lost the first time: the chief had heard of it, and saved.
    assert restarts(served)["ps-0"] == [143, 137]
    assert restarts(served)["chief"] == [143, 75, 137]
    assert [e["message"] for e in served.run.events("chief", "notice") if "asked to stop" in e["message"]] == [
        "ps-0 was asked to stop: this task saves, and starts again when ps-0 is back"
    ]


@pytest.mark.slow
def test_a_task_of_an_all_reduce_that_is_asked_to_stop_alone_costs_no_step(all_reduce: Life) -> None:
    assert_no_step_was_lost(all_reduce)
    assert {task: codes[0] for task, codes in restarts(all_reduce).items()} == {"worker-0": 143, "worker-1": 143}


@pytest.mark.slow
def test_a_stopped_run_of_an_all_reduce_goes_on_from_exactly_there_to_its_end(all_reduce: Life) -> None:
    assert_stopped_and_complete(all_reduce)
