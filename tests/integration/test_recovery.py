"""Kills tasks of real clusters midway, one after the other in the same run: it resumes from the right step, stops, and completes."""

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
MORE_STEPS = 60  # between two faults, and after the run is resumed
CHECKPOINT = {"every_steps": SAVE_EVERY, "keep": 3}


@dataclass
class ObservedRun:
    """One run, and what was observed of it."""

    run: Run
    chief: str
    restored: dict[str, Event] = field(default_factory=dict)
    saved_before: dict[str, int] = field(default_factory=dict)
    killed: dict[str, float] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    stopped_at: int = 0
    stopping: float = 0

    def checkpoints(self) -> list[Event]:
        return self.run.events(self.chief, "checkpoint")

    def after(self, when: float, kind: str, task: str = "") -> list[Event]:
        return [event for event in self.run.events(task or self.chief, kind) if event["time"] > when]

    def lose(self, victim: str, label: str = "") -> None:
        """Kill a training process, with a `label` also its parent, after two checkpoints; wait for a restored checkpoint and further steps."""
        self.run.await_two_checkpoints(self.chief)
        name = label or victim
        self.killed[name] = time.time()
        self.saved_before[name] = self.checkpoints()[-1]["step"]
        if label:
            kill_with_parent(self.run, victim)
        else:
            self.run.kill_training_process(victim)
        restored = self.run.until(f"the checkpoint, {name} killed", lambda: self.after(self.killed[name], "restored"))[-1]
        self.restored[name] = restored
        first = self.run.until(f"steps to flow again, {name} killed", lambda: self.after(restored["time"], "progress"))[0]
        print(f"\n{self.run.name}: {name} killed, steps again after {first['time'] - self.killed[name]:.1f} s")

    def drain(self, task: str) -> None:
        """Ask a single task to stop, after two checkpoints and a step that is not saved; wait until the chief has restored one."""
        self.run.await_two_checkpoints(self.chief)
        self.run.until("a step that is not saved", lambda: self.run.chief_step(self.chief) > self.checkpoints()[-1]["step"])
        asked_at = time.time()
        os.kill(pid_of(self.run, task), signal.SIGTERM)
        self.restored["drained"] = self.run.until("the run to resume", lambda: self.after(asked_at, "restored"))[0]
        self.notes["drained"] = [e for e in self.checkpoints() if e["time"] < self.restored["drained"]["time"]][-1]["step"]

    def contributes(self, worker: str, attempt: int) -> None:
        """Wait until a worker of servers that has started again has taken more steps than could have been in progress before."""
        begun = self.run.until(f"{worker} to start again", lambda: self.run.events(worker, "started")[attempt:])[0]["time"]
        before = max(event["local_step"] for event in self.worker_progress(worker) if event["time"] <= begun)

        def more() -> bool:
            return any(event["time"] > begun and event["local_step"] > before + MORE_STEPS for event in self.worker_progress(worker))

        self.run.until(f"{worker} to contribute again", more)

    def worker_progress(self, worker: str) -> list[Event]:
        """Return the progress of a worker of servers, as the chief reports it."""
        return [event for event in self.run.events(self.chief, "progress") if event["task"] == worker]

    def end(self) -> None:
        """Stop the run, and resume it to its end, MORE_STEPS later."""
        self.run.await_two_checkpoints(self.chief)
        self.stopping = time.time()
        self.stopped_at = stop(self.run)
        self.notes["saved at the stop"] = {step: updates(self.run, step) for step in checkpoints(self.run.directory)}
        file = str(self.run.runs.parent / f"{self.run.name}.yaml")
        resumed = self.run.launcher("up", file, "--resume", "--set", f"train.steps={self.stopped_at + MORE_STEPS}", check=False)
        assert resumed.returncode == 0, resumed.stdout + resumed.stderr
        leftovers.assert_none(self.run.directory)

    def causes(self, task: str) -> list[str]:
        return [restart["cause"] for row in self.notes["status"]["tasks"] if row["name"] == task for restart in row["restarts"]]


def spec(name: str, strategy: str, roles: dict[str, Any]) -> dict[str, Any]:
    return {"version": 1, "name": name, "strategy": strategy, "roles": roles, **paced(checkpoint=CHECKPOINT, report_every_steps=10)}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> ObservedRun:
    """Parameter servers: worker-1 is killed, then also its parent; the ps is asked to stop, then killed; the chief is killed; the run stops and resumes."""
    with started(
        spec("served", "parameter_server", {"chief": {}, "ps": {}, "worker": {"replicas": 2}}), tmp_path_factory.mktemp("served")
    ) as run:
        observed = ObservedRun(run, "chief")
        run.await_two_checkpoints("chief")
        observed.notes["ports"] = {task["name"]: int(task["address"].rpartition(":")[2]) for task in run.status()["tasks"]}
        observed.notes["own"] = {port: reachable("127.0.0.1", port) for port in observed.notes["ports"].values()}
        others = address_for_others()
        observed.notes["others"] = {port: reachable(others, port) for port in observed.notes["ports"].values()} if others else None
        # The chief and worker-0 may have saved without it.
        run.until("worker-1 to contribute", lambda: observed.worker_progress("worker-1"))
        run.kill_training_process("worker-1")
        observed.contributes("worker-1", 1)
        parent = kill_with_parent(run, "worker-1")
        run.until("another parent", lambda: pid_of(run, "worker-1") not in (None, parent))
        observed.contributes("worker-1", 2)
        observed.notes["with workers lost"] = {kind: run.events("chief", kind) for kind in ("started", "restored", "progress")}
        observed.notes["status with workers lost"] = run.status()
        observed.drain("ps-0")
        observed.lose("ps-0")
        observed.lose("chief")
        observed.notes["status"] = run.status()
        observed.end()
    return observed


@pytest.fixture(scope="module")
def all_reduce(tmp_path_factory: pytest.TempPathFactory) -> ObservedRun:
    """Workers of an all-reduce: one is asked to stop, each is killed, one also with its parent; then the run stops and resumes."""
    with started(spec("in-step", "multi_worker_mirrored", {"worker": {"replicas": 2}}), tmp_path_factory.mktemp("in-step")) as run:
        observed = ObservedRun(run, "worker-0")
        observed.drain("worker-1")
        observed.lose("worker-1")
        observed.lose("worker-0")
        observed.lose("worker-0", "worker-0 and its parent")
        observed.notes["status"] = run.status()
        observed.end()
    return observed


def assert_resumed_from_a_checkpoint(observed: ObservedRun, victim: str) -> None:
    """Check that the last checkpoint, or one that was being written, was restored once, and that no step before it was counted again."""
    restored = observed.restored[victim]
    killed = observed.killed[victim]
    next_fault = min(when for when in (*observed.killed.values(), observed.stopping) if when > killed)
    assert [e["step"] for e in observed.after(killed, "restored") if e["time"] < next_fault] == [restored["step"]]
    saved = [e["step"] for e in observed.checkpoints() if e["time"] < restored["time"]]
    # The chief may have saved again before the kill without reporting it. An older checkpoint is never restored.
    assert observed.saved_before[victim] <= saved[-1] <= restored["step"] <= saved[-1] + 2 * SAVE_EVERY
    later = [e["time"] for e in observed.run.events(observed.chief, "restored") if e["time"] > restored["time"]]
    own_progress = [e for e in observed.after(restored["time"], "progress") if e["time"] < later[0] and e["task"] == observed.chief]
    assert min(e["step"] for e in own_progress) > restored["step"]


def assert_stopped_and_complete(observed: ObservedRun) -> None:
    status = observed.run.status()
    end = observed.stopped_at + MORE_STEPS
    assert (status["state"], status["step"], checkpoints(observed.run.directory)[-1]) == ("succeeded", end, end)
    assert status["metrics"]["accuracy"] >= 0.9
    assert all(task["restarts"] == [] for task in status["tasks"])
    restored = observed.run.events(observed.chief, "restored")[-1]
    assert restored["step"] == observed.stopped_at
    before = [
        e["step"]
        for e in observed.run.events(observed.chief, "progress")
        if observed.restored[_last(observed)]["time"] < e["time"] < restored["time"]
    ]
    after = [e["step"] for e in observed.after(restored["time"], "progress") if e["task"] == observed.chief]
    assert max(before) <= observed.stopped_at < min(after)
    assert observed.notes["saved at the stop"] == {step: step for step in observed.notes["saved at the stop"]}
    assert updates(observed.run, end) == end


def _last(observed: ObservedRun) -> str:
    return list(observed.restored)[-1]


@pytest.mark.skipif(sys.platform != "linux", reason="socket filters are Linux's; docs/architecture.md says what to do elsewhere")
def test_no_task_is_reachable_from_other_machines(served: ObservedRun) -> None:
    if served.notes["others"] is None:
        pytest.skip("this machine has no address but loopback")
    assert sorted(served.notes["ports"]) == ["chief", "ps-0", "worker-0", "worker-1"]
    assert set(served.notes["own"].values()) == {True}
    assert set(served.notes["others"].values()) == {False}


def test_a_killed_worker_of_parameter_servers_restarts_without_the_others(served: ObservedRun) -> None:
    notes = served.notes["with workers lost"]
    assert notes["restored"] == []
    assert len(notes["started"]) == 1
    steps = [event["step"] for event in notes["progress"] if event["task"] == "chief"]
    assert steps == sorted(steps)
    assert [task["name"] for task in served.notes["status with workers lost"]["tasks"] if task["restarts"]] == ["worker-1"]


def test_a_worker_killed_with_its_parent_is_restarted_by_the_launcher(served: ObservedRun) -> None:
    # The second parent counts its attempts from 1.
    assert [event["attempt"] for event in served.run.events("worker-1", "started")][:3] == [1, 2, 1]
    assert sum("SIGKILL" in cause for cause in served.causes("worker-1")) == 2


@pytest.mark.parametrize("victim", ["ps-0", "chief"])
def test_training_that_lost_a_server_or_the_chief_resumes_from_the_last_checkpoint(served: ObservedRun, victim: str) -> None:
    assert_resumed_from_a_checkpoint(served, victim)
    assert any("SIGKILL" in cause for cause in served.causes(victim)), served.causes(victim)


def test_a_stopped_run_of_servers_resumes_at_the_same_step_and_completes(served: ObservedRun) -> None:
    assert_stopped_and_complete(served)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["worker-1", "worker-0", "worker-0 and its parent"])
def test_training_that_lost_a_task_of_an_all_reduce_resumes_from_the_last_checkpoint(all_reduce: ObservedRun, victim: str) -> None:
    assert_resumed_from_a_checkpoint(all_reduce, victim)
    task = victim.partition(" ")[0]
    assert any("SIGKILL" in cause for cause in all_reduce.causes(task)), all_reduce.causes(task)
    assert 75 in [code for name, codes in restarts(all_reduce).items() if name != task for code in codes]


def assert_no_step_was_lost(observed: ObservedRun) -> None:
    restored = observed.restored["drained"]
    assert restored["step"] == observed.notes["drained"]
    steps = [
        e["step"] for e in observed.run.events(observed.chief, "progress") if e["task"] == observed.chief and e["time"] < restored["time"]
    ]
    assert max(steps) <= restored["step"]


def restarts(observed: ObservedRun) -> dict[str, list[int]]:
    return {task["name"]: [restart["exit_code"] for restart in task["restarts"]] for task in observed.notes["status"]["tasks"]}


def test_a_request_to_stop_a_single_ps_costs_no_step(served: ObservedRun) -> None:
    assert_no_step_was_lost(served)
    # The ps was asked to stop, then killed. The chief learned of the request and saved, so no peer was lost the first time.
    assert restarts(served)["ps-0"] == [143, 137]
    assert restarts(served)["chief"] == [143, 75, 137]
    assert [e["message"] for e in served.run.events("chief", "notice") if "asked to stop" in e["message"]] == [
        "ps-0 was asked to stop: this task saves, and starts again when ps-0 is back"
    ]


@pytest.mark.slow
def test_a_request_to_stop_a_single_task_of_an_all_reduce_costs_no_step(all_reduce: ObservedRun) -> None:
    assert_no_step_was_lost(all_reduce)
    assert {task: codes[0] for task, codes in restarts(all_reduce).items()} == {"worker-0": 143, "worker-1": 143}


@pytest.mark.slow
def test_a_stopped_run_of_an_all_reduce_resumes_at_the_same_step_and_completes(all_reduce: ObservedRun) -> None:
    assert_stopped_and_complete(all_reduce)
