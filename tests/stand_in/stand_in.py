"""An engine without TensorFlow: its tasks behave like training processes, but start in a fifth of a second and compute nothing.

For tests of everything except training: a spec names this directory as its `code` and `stand_in:Steps` as its workload (`spec` below).
A step is a wait of `params.step_seconds`. Tasks connect to each other as the strategy requires, lose each other as TensorFlow's tasks do
(PeerLostError; a peer that is silent for `params.silent_seconds` is lost, too), save checkpoints that are files of the right names, resume
from them, report the same events as the real loop, write run.json, and react to a stop. They do not train: no model, no TensorBoard logs, no exports.

Every task listens at its address. A connection carries lines: the answer to `ask` is `here`, the answer to `end` is `here`, and `end` ends a server;
a follower of multi_worker_mirrored sends `step` or `stop`, and the answer is the number of the next step, `stop` or `done`.
"""

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.engine import evaluations, peer_wait, run_state
from trainer.engine.cadence import REPORT_INTERVAL, Interval
from trainer.engine.session import PeerLostError
from trainer.engine.train_config import TrainConfig
from trainer.exit_codes import ExitCode
from trainer.roles import RoleContext
from trainer.socket_filter import listen
from trainer.strategies import SERVER_STRATEGIES
from trainer.tf_config import split_address
from trainer.workloads.errors import WorkloadError

HERE = Path(__file__).parent
_SILENCE_LIMIT = 120.0  # seconds, the default: long enough to wait for a peer that is only paused
_POLL_INTERVAL = 0.05
_LEAVE_TIMEOUT = 5.0  # seconds that a leader gives followers to take its last answer and end


def spec(steps: int = 1_000_000, step_seconds: float = 0.05, **train: Any) -> dict[str, Any]:
    """Return the sections `code` and `train` of a spec whose tasks run this engine.

    With `params={"wrong": TEXT}` the workload cannot be used, for that reason.
    """
    train["params"] = {"step_seconds": step_seconds} | train.get("params", {})
    return {"code": str(HERE), "train": {"workload": "stand_in:Steps", "steps": steps, "batch_size": 1} | train}


class Steps:
    """The name of a workload; no instance is created."""


def import_for(_strategy: str, _role: str) -> None:
    """Import nothing."""


def run(context: RoleContext) -> ExitCode:
    """Do the task's work and return how it ended."""
    task, config = context.task, context.config
    assert "tensorflow" not in sys.modules, "a task imports TensorFlow before its engine does: tasks of this engine must start at once"
    if wrong := config.train.params.get("wrong"):
        raise WorkloadError(str(wrong))
    if task.role == "evaluator":
        return _evaluate(context)
    if config.strategy in SERVER_STRATEGIES and not task.is_chief:
        return _serve(context)
    if not peer_wait.wait(task, config.strategy, context.port, context.stop_requested, config.start_timeout):
        return ExitCode.STOPPED
    return _lead(context) if task.is_chief else _follow(context)


# Connections


class _Listener:
    """Takes connections at a task's address and answers each line by `answer`, on a thread of its own."""

    def __init__(self, address: str | None, answer: Callable[[socket.socket, str], str]) -> None:
        self._answer = answer
        if address is not None:
            socket_ = listen(*split_address(address), backlog=128)
            threading.Thread(target=self._accept, args=(socket_,), daemon=True).start()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=self._answer_lines, args=(connection,), daemon=True).start()

    def _answer_lines(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError), connection.makefile("r") as lines:
            for line in lines:
                connection.sendall(f"{self._answer(connection, line.strip())}\n".encode())


class _Peer:
    """A connection to another task. Raises PeerLostError if that is lost."""

    def __init__(self, name: str, address: str, silence_limit: float) -> None:
        self._name, self._address = name, address
        try:
            self._socket = socket.create_connection(split_address(address), timeout=silence_limit)
        except OSError as error:
            raise self._lost(error) from error
        self._lines = self._socket.makefile("r")

    def ask(self, line: str) -> str:
        """Return the answer to a line."""
        try:
            self._socket.sendall(f"{line}\n".encode())
            if answer := self._lines.readline().strip():
                return answer
        except OSError as error:
            raise self._lost(error) from error
        raise self._lost("the connection was closed")

    def _lost(self, reason: object) -> PeerLostError:
        return PeerLostError(f"{self._name} ({self._address}) was lost: {reason}")


@dataclass
class _Worker:
    """A worker of parameter servers as its chief sees it. A thread asks it for one step after another, and reconnects when it is back."""

    name: str
    address: str
    seconds: float
    silence_limit: float
    steps: int = 0
    reported_steps: int = 0

    def start(self) -> None:
        threading.Thread(target=self._drive, daemon=True).start()

    def _drive(self) -> None:
        while True:
            with contextlib.suppress(PeerLostError):
                peer = _Peer(self.name, self.address, self.silence_limit)
                self.steps = self.reported_steps = 0
                while peer.ask("ask"):
                    self.steps += 1
                    time.sleep(self.seconds)
            time.sleep(0.2)


# Roles


def _serve(context: RoleContext) -> ExitCode:
    ended = threading.Event()

    def answer(_connection: socket.socket, line: str) -> str:
        if line == "end":
            ended.set()
        return "here"

    _Listener(context.task.address, answer)
    while not ended.wait(_POLL_INTERVAL):
        if context.stop_requested():
            return ExitCode.STOPPED
    time.sleep(_POLL_INTERVAL)  # the answer is on its way
    context.report("done", step=None, seconds=time.time() - context.began, metrics={})
    return ExitCode.DONE


def _evaluate(context: RoleContext) -> ExitCode:
    config, evaluated = context.config, 0
    changed_at, updated = time.monotonic(), None
    while not context.stop_requested():
        facts = run_state.read(config.run_dir)
        succeeded = (facts.get("steps"), facts.get("spec_digest"), facts.get("state")) == (config.steps, config.spec_digest, "succeeded")
        steps = _saved_steps(config)
        if steps and steps[-1] != evaluated:
            evaluated = steps[-1]
            metrics = {"loss": 1 / (1 + evaluated), "accuracy": 1.0}
            evaluations.append(config.run_dir, evaluated, metrics)
            context.report("evaluated", step=evaluated, metrics=metrics, seconds=0.0)
        elif succeeded and evaluated >= facts.get("step", 0):
            context.report("done", step=evaluated, seconds=time.time() - context.began, metrics={})
            return ExitCode.DONE
        if facts.get("updated") != updated:
            changed_at, updated = time.monotonic(), facts.get("updated")
        elif time.monotonic() - changed_at > config.orphan_timeout:
            raise PeerLostError(f"the chief has written nothing to {config.run_dir / 'run.json'} for {config.orphan_timeout:.0f} s")
        time.sleep(0.2)
    return ExitCode.STOPPED


def _follow(context: RoleContext) -> ExitCode:
    """Follow the steps of the leader of multi_worker_mirrored, and report a stop to it."""
    task = context.task
    _Listener(task.address, lambda _connection, _line: "here")
    leader = _Peer(task.chief_name, task.tasks()[task.chief_name], _silence_limit(context.config))
    context.report("ready", seconds=time.time() - context.began)
    due, began, first = Interval(context.config.report_every, None if context.config.report_every else REPORT_INTERVAL), time.monotonic(), 0
    while True:
        answer = leader.ask("stop" if context.stop_requested() else "step")
        if answer == "stop":
            return ExitCode.STOPPED
        if answer == "done":
            context.report("done", step=context.config.steps, seconds=time.time() - context.began, metrics={})
            return ExitCode.DONE
        step = int(answer)
        first = first or step
        if due(step):
            _progress(context, step, (time.monotonic() - began) / (1 + step - first))


@dataclass
class _Barrier:
    """Makes the followers of multi_worker_mirrored wait for each other at each step."""

    followers: int
    silence_limit: float
    members: set[socket.socket] = field(default_factory=set)
    arrived: dict[socket.socket, str] = field(default_factory=dict)
    answer: str = ""
    round: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def arrive(self, connection: socket.socket, line: str) -> str:
        """Register a follower's arrival, and return the leader's answer to all."""
        with self.changed:
            current = self.round
            self.members.add(connection)
            self.arrived[connection] = line
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.round > current)
            return self.answer

    def gather(self, stop_requested: Callable[[], bool]) -> bool:
        """Wait for all followers; return whether one of them was asked to stop. Raises PeerLostError."""
        began = time.monotonic()
        with self.changed:
            while len(self.arrived) < self.followers:
                self.changed.wait(_POLL_INTERVAL)
                if len(self.members) == self.followers and time.monotonic() - began > self.silence_limit:
                    raise PeerLostError(f"a worker was lost: it has been silent for {self.silence_limit:.0f} s")
                if any(_closed(connection) for connection in self.members):
                    raise PeerLostError("a worker was lost: the connection was closed")
                if stop_requested() and not self.arrived and not self.round:
                    return True  # no follower has arrived yet
            return "stop" in self.arrived.values()

    def release(self, answer: str) -> None:
        """Send this answer to all followers."""
        with self.changed:
            self.answer, self.round = answer, self.round + 1
            self.arrived.clear()
            self.changed.notify_all()

    def await_departure(self) -> None:
        """Wait until all followers have left with the last answer, but not for a follower that hangs."""
        deadline = time.monotonic() + _LEAVE_TIMEOUT
        while time.monotonic() < deadline and not all(_closed(connection) for connection in list(self.members)):
            time.sleep(_POLL_INTERVAL)


def _closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


class _Chief:
    """Does the chief's work between steps: reports, saves and writes run.json."""

    def __init__(self, context: RoleContext) -> None:
        self._context, self.config = context, context.config
        facts = {"name": self.config.run, "strategy": self.config.strategy, "workload": self.config.train.workload}
        self._facts = {**facts, "steps": self.config.steps, "spec_digest": self.config.spec_digest, "started": time.time()}
        self.step = (_saved_steps(self.config) or [0])[-1]
        self._first, self._began = self.step, time.monotonic()
        if self.step:
            context.report("restored", step=self.step, path=str(_checkpoint_path(self.config, self.step)))
        context.report.start_step = self.step
        self._saved_step = self.step or None
        checkpoint = self.config.checkpoint
        self._save_due = Interval(checkpoint.every_steps or 0, checkpoint.every_seconds)
        self._report_due = Interval(self.config.report_every, None if self.config.report_every else REPORT_INTERVAL)
        for due in (self._save_due, self._report_due):
            due.start(self.step)
        self._write_state("running")

    def after_step(self, workers: list[_Worker]) -> None:
        """Do what is due after a step."""
        if self._report_due(self.step) or self.step >= self.config.steps or self.step == self._first + 1:
            _progress(self._context, self.step, (time.monotonic() - self._began) / max(1, self.step - self._first))
            for worker in workers:
                if worker.steps > worker.reported_steps:
                    worker.reported_steps = worker.steps
                    _progress(self._context, self.step, worker.seconds, task=worker.name, local_step=worker.steps)
        if self._save_due(self.step):
            self.save()

    def save(self) -> None:
        """Write a checkpoint of the step, unless there is one."""
        if self._saved_step == self.step:
            return
        path = _checkpoint_path(self.config, self.step)
        run_state.write_atomically(path.with_name(f"{path.name}.data-00000-of-00001"), json.dumps({"step": self.step}))
        run_state.write_atomically(path.with_name(f"{path.name}.index"), "")
        for old in _saved_steps(self.config)[: -self.config.checkpoint.keep]:
            for file in path.parent.glob(f"ckpt-{old}.*"):
                file.unlink(missing_ok=True)
        lines = [f"model_checkpoint_path: {json.dumps(path.name)}"]
        lines += [
            f"all_model_checkpoint_paths: {json.dumps(_checkpoint_path(self.config, step).name)}" for step in _saved_steps(self.config)
        ]
        run_state.write_atomically(path.with_name("checkpoint"), "\n".join(lines) + "\n")
        self._saved_step = self.step
        self._write_state("running", checkpoint=str(path))
        self._context.report("checkpoint", step=self.step, path=str(path), seconds=0.0)

    def finish(self, *, finished: bool) -> ExitCode:
        """Save for the last time, and record the end in run.json."""
        self.save()
        metrics = {"loss": 1 / (1 + self.step), "accuracy": 1.0} if finished else {}
        if finished:
            if not self.config.has_evaluator:
                evaluations.append(self.config.run_dir, self.step, metrics)
            self._context.report("evaluated", step=self.step, metrics=metrics, seconds=0.0)
        self._write_state("succeeded" if finished else "stopped", metrics=metrics)
        return ExitCode.DONE if finished else ExitCode.STOPPED

    def report_done(self) -> None:
        """Report the end."""
        self._context.report("done", step=self.step, seconds=time.time() - self._context.began, metrics={"accuracy": 1.0})

    def _write_state(self, state: run_state.RunState, **facts: Any) -> None:
        self._facts |= {**facts, "state": state, "step": self.step, "updated": time.time()}
        run_state.write_atomically(self.config.run_dir / "run.json", json.dumps(self._facts))


def _lead(context: RoleContext) -> ExitCode:
    task, config = context.task, context.config
    seconds = float(config.train.params.get("step_seconds", 0.05))
    silence_limit = _silence_limit(config)
    barrier = _Barrier(len(task.tasks()) - 1 if config.strategy == "multi_worker_mirrored" else 0, silence_limit)
    _Listener(task.address, lambda connection, line: barrier.arrive(connection, line) if line in {"step", "stop"} else "here")
    has_servers = config.strategy in SERVER_STRATEGIES
    servers = [_Peer(name, address, silence_limit) for name, address in task.peers().items() if has_servers and name.startswith("ps-")]
    peers = task.peers().items()
    workers = [_Worker(name, address, seconds, silence_limit) for name, address in peers if has_servers and name.startswith("worker-")]
    for worker in workers:
        worker.start()
    context.report("ready", seconds=time.time() - context.began)
    chief = _Chief(context)
    while chief.step < config.steps:
        stopping = barrier.gather(context.stop_requested) or context.stop_requested()
        for server in servers:
            server.ask("ask")
        if stopping:
            code = chief.finish(finished=False)
            barrier.release("stop")
            barrier.await_departure()
            return code
        time.sleep(seconds)
        chief.step += 1
        barrier.release(str(chief.step) if chief.step < config.steps else "done")
        chief.after_step(workers)
    code = chief.finish(finished=True)
    if has_servers:
        for name, address in task.peers().items():
            with contextlib.suppress(PeerLostError):
                _Peer(name, address, silence_limit).ask("end")
    chief.report_done()
    barrier.await_departure()
    return code


def _silence_limit(config: TrainConfig) -> float:
    return float(config.train.params.get("silent_seconds", _SILENCE_LIMIT))


def _progress(context: RoleContext, step: int, seconds: float, **fields: Any) -> None:
    config = context.config
    facts: dict[str, Any] = {"steps": config.steps, "loss": 1 / (1 + step), "metrics": {"accuracy": 1 - 1 / (1 + step)}}
    context.report("progress", step=step, **facts, examples_per_second=1 / seconds, seconds_per_step=seconds, **fields)


def _checkpoint_path(config: TrainConfig, step: int) -> Path:
    return config.run_dir / "checkpoints" / f"ckpt-{step}"


def _saved_steps(config: TrainConfig) -> list[int]:
    return sorted(int(file.stem.removeprefix("ckpt-")) for file in (config.run_dir / "checkpoints").glob("ckpt-*.index"))
