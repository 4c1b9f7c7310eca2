"""Runs a program with manual placement: connects the chief to every ps and worker, calls the program, records its result.

A program has no checkpoints. When a server or the chief is lost, it runs again from its beginning; so its files replace those of the
earlier attempt.
"""

import math
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import tensorflow as tf

import trainer
from trainer import error_file
from trainer.engine import peer_wait
from trainer.engine.cadence import REPORT_INTERVAL
from trainer.engine.connections import unreachable
from trainer.engine.manual.watchdog import ProgramWatchdog
from trainer.engine.run_state import Record
from trainer.engine.session import PeerLostError, cause
from trainer.engine.train_config import TrainConfig
from trainer.events import Reporter
from trainer.exit_codes import ExitCode
from trainer.port_holder import PortHolder
from trainer.programs import devices
from trainer.programs.cluster import Cluster, Task
from trainer.programs.device_log import DeviceLog
from trainer.programs.program_loading import Program
from trainer.socket_filter import restricting_to_loopback
from trainer.tf_config import TaskConfig, task_name
from trainer.workloads.errors import WorkloadError

RESULTS = "results"
_DEVICES = "devices"  # the table of which device ran what, in results/

# TensorFlow's errors for a server that is gone. One that came back in its place does not know the chief's context.
_LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.DeadlineExceededError)
_UNKNOWN_CONTEXT = "context_id"
_SHUTDOWN_SECONDS = 2.0  # seconds after its connections in which a server that was killed still listens
_TARGET = re.compile(r"/job:(\w+)/replica:\d+/task:(\d+)")
_LIBRARIES = tuple(f"{Path(str(package.__file__)).parent}{os.sep}" for package in (tf, trainer))
_CONNECT_TIMEOUT = 2.0
_POLL_INTERVAL = 0.1


@dataclass(frozen=True)
class ProgramOutcome:
    """The result of a program: the last step that it reported, or None, and its metrics."""

    step: int | None
    metrics: dict[str, float]


def run(
    program: Program,
    task: TaskConfig,
    config: TrainConfig,
    port: PortHolder,
    report: Reporter,
    stop_requested: Callable[[], bool],
    began: float,
) -> ProgramOutcome:
    """Connect to the cluster and run `program` on it to its end. A stop that is asked for meanwhile ends this process.

    `port` holds the task's port until TensorFlow opens it; `began` is when the process started, in seconds since the epoch.

    Raises:
        PeerLostError: a server was lost, and is named.
        WorkloadError: the program returned neither metrics nor None.
    """
    log = DeviceLog()
    progress = _ProgressReporter(report)
    record = Record(
        config.run_dir, name=config.run, strategy=config.strategy, workload=config.train.workload, spec_digest=config.spec_digest
    )
    watch = ProgramWatchdog(task.peers(), stop_requested, lambda: record.update("running", progress.step), _make_exit(record, progress))
    watch.start()
    try:
        peer_wait.wait(task, config.strategy, port, lambda: False, config.start_timeout)  # `watch` handles a stop
        chief, *others = _connect(task)
        watch.all_connected()
        record.update("running", None)
        cluster = Cluster(
            chief=chief,
            tasks=tuple(others),
            results=config.run_dir / RESULTS,
            log=log,
            notice=lambda message: report("notice", message=message),
            progress=progress,
        )
        report("ready", seconds=time.time() - began)
        logs = tf.summary.create_file_writer(str(config.run_dir / "logs" / "train"))  # once it is connected: this starts TensorFlow up
        with logs.as_default(step=0), log.watch():
            metrics = _metrics(_call(program, cluster), config.train.workload)
        progress.flush()
        _show_devices(cluster)  # waits for calls that the program has not waited for
    except tf.errors.OpError as error:
        _raise_if_lost(error, task, watch.ended)
        raise
    finally:
        watch.stop()
    with logs.as_default(step=progress.step or 0):
        for name, value in metrics.items():
            tf.summary.scalar(name, value)
    logs.close()
    steps = {} if progress.steps is None else {"steps": progress.steps}
    record.update("succeeded", progress.step, metrics=metrics, **steps)
    return ProgramOutcome(progress.step, metrics)


def _connect(task: TaskConfig) -> list[Task]:
    """Connect to every server; returns the chief and the servers with their devices, workers before ps."""
    cluster = tf.train.ClusterSpec({role: list(addresses) for role, addresses in task.cluster.items()})
    with restricting_to_loopback(task.address):
        tf.config.experimental_connect_to_cluster(cluster, job_name=task.role, task_index=task.index, protocol="grpc")
        found_devices = tf.config.list_logical_devices()  # its first use: TensorFlow listens, and connects, only now
    by_task: dict[str, list[tuple[devices.Device, str]]] = {name: [] for name in task.tasks()}
    for found_device in found_devices:
        if found_device.device_type.lower() in devices.KINDS:
            device = devices.parse(found_device.name)
            by_task[device.task or task.name].append((device, found_device.name))
    return [Task(name, tuple(full for _, full in sorted(own, key=_by_kind))) for name, own in by_task.items()]


def _by_kind(named: tuple[devices.Device, str]) -> tuple[int, int]:
    device, _ = named
    return devices.KINDS.index(device.kind or "cpu"), device.number or 0


def _raise_if_lost(error: Any, task: TaskConfig, ended: Callable[[], Sequence[str]]) -> None:
    """Raise PeerLostError, with the server's name, if TensorFlow's error is due to a lost server.

    An error that the program's own code raised is not, whatever its class; the trainer's own code raises none of these classes.
    """
    is_loss = isinstance(error, _LOST) or _UNKNOWN_CONTEXT in str(error.message)
    if not is_loss and not isinstance(error, tf.errors.UnknownError):
        return
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    if not frame.f_code.co_filename.startswith(_LIBRARIES):
        return
    peers = task.peers()
    named_tasks = [task_name(role, int(index)) for role, index in _TARGET.findall(str(error.message))]
    until = time.monotonic() + _SHUTDOWN_SECONDS
    # The error may name a task that only waited for the lost server. So that server is one that has ended, or accepts no connection.
    while not (lost := ended() or [name for name, address in peers.items() if unreachable(address, _CONNECT_TIMEOUT)]):
        if (is_loss and named_tasks) or time.monotonic() > until:
            break
        time.sleep(_POLL_INTERVAL)
    if not lost and not is_loss:
        return
    # It may be back already: then the names in the error are taken.
    lost = lost or [name for name in dict.fromkeys(named_tasks) if name in peers]
    who = ", ".join(f"{name} ({peers[name]})" for name in lost) or "a worker or ps"
    raise PeerLostError(f"{who} was lost while the program ran, which starts again from its beginning: {cause(error)}") from error


def _call(program: Program, cluster: Cluster) -> Any:
    """Run a program; return its result, None if it ends by `sys.exit(0)`, as a script may."""
    try:
        return program(cluster)
    except SystemExit as error:
        if error.code is not None and error.code != 0:
            raise
        return None


def _metrics(returned: Any, workload: str) -> dict[str, float]:
    """Return a program's result as metrics. Raises WorkloadError if it is neither a mapping of names to numbers nor None."""
    if returned is None:
        return {}
    try:
        return {str(name): float(value) for name, value in returned.items()}
    except (AttributeError, TypeError, ValueError):
        shown = repr(returned)
        raise WorkloadError(
            f"train.workload {workload} returned {shown if len(shown) <= 60 else shown[:57] + '...'}; expected a dict of names and numbers, "
            "or nothing. Write other results into cluster.results."
        ) from None


def _show_devices(cluster: Cluster) -> None:
    for message in cluster.log.misplaced():
        cluster.notice(message)
    text = cluster.log.text()
    print(text, flush=True)
    cluster.write(f"{_DEVICES}.txt", text + "\n")


def _make_exit(record: Record, progress: "_ProgressReporter") -> Callable[[ExitCode, str], NoReturn]:
    """Return a function that ends this process from the watchdog's thread: the program's own thread may never return from TensorFlow."""

    def exit_process(code: ExitCode, reason: str) -> NoReturn:
        try:
            if code == ExitCode.STOPPED:
                record.update("stopped", progress.step)
            if reason:
                line = f"{reason}; the program starts again from its beginning"
                print(line, file=sys.stderr)
                error_file.write(line)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:  # even if something could not be written
            os._exit(code)

    return exit_process


class _ProgressReporter:
    """Reports the progress of a program: the last step always, others about twice a second."""

    def __init__(self, report: Reporter) -> None:
        self._report = report
        self.step: int | None = None
        self.steps: int | None = None
        self._metrics: Mapping[str, float] = {}
        self._reported_step: int | None = None
        self._reported_at = time.monotonic()

    def __call__(self, step: int, steps: int, metrics: Mapping[str, float] | None = None) -> None:
        self.step, self.steps, self._metrics = int(step), int(steps), metrics or {}  # NumPy's numbers are none of JSON's
        if time.monotonic() - self._reported_at >= REPORT_INTERVAL:
            self.flush()

    def flush(self) -> None:
        """Report the last step, unless it was reported."""
        if self.step is None or self.step == self._reported_step:
            return
        now = time.monotonic()
        done = self.step - (self._reported_step or 0)
        seconds = (now - self._reported_at) / done if done > 0 else math.nan
        metrics = {name: float(value) for name, value in self._metrics.items()}
        self._report("progress", step=self.step, steps=self.steps, metrics=metrics, seconds_per_step=seconds)
        self._reported_at, self._reported_step = now, self.step
