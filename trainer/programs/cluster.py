"""The interface of a program: the connected cluster with its tasks and devices, and the program's progress and output."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import tensorflow as tf

from trainer.engine.run_state import write_atomically
from trainer.programs import devices
from trainer.programs.device_log import DeviceLog
from trainer.programs.text_tables import table
from trainer.workloads.errors import WorkloadError

Result = TypeVar("Result")


@dataclass(frozen=True)
class Task:
    """A task and its devices by TensorFlow's names, as `tf.device` takes them: CPUs first, then GPUs, in order."""

    name: str  # for example chief, worker-0, ps-1
    devices: tuple[str, ...]

    @property
    def cpu(self) -> str:
        """Its first CPU."""
        return self.devices[0]

    @property
    def gpus(self) -> tuple[str, ...]:
        """Its GPUs."""
        return tuple(name for name in self.devices if devices.parse(name).kind == "gpu")

    @property
    def device(self) -> str:
        """Its best device: the first GPU, or the CPU if it has none."""
        return (*self.gpus, self.cpu)[0]


class ProgressReporter(Protocol):
    """Reports the progress of a program."""

    def __call__(self, step: int, steps: int, metrics: dict[str, float] | None = None) -> None:
        """Report that `step` of `steps` steps are done; any number of calls is fine, as about two a second are passed on."""


@dataclass(frozen=True)
class Cluster:
    """The connected cluster. `tasks` are its servers, workers before ps, each by its index; the chief runs the program itself.

    Files in `results` and summaries replace those of an earlier attempt: a program may run again.
    """

    chief: Task
    tasks: tuple[Task, ...]
    results: Path
    log: DeviceLog
    notice: Callable[[str], None]
    progress: ProgressReporter

    def device(self, name: str) -> str:
        """Return TensorFlow's name of a device. Names: cpu or gpu:1 of the chief, worker-0 (its best), worker-0/gpu:1.

        If the task has no such device, a notice says so, and its CPU is returned.

        Raises:
            WorkloadError: the name is invalid, or there is no such task.
        """
        try:
            requested = devices.parse(name)
        except ValueError as error:
            raise WorkloadError(str(error)) from None
        tasks_by_name = {task.name: task for task in (self.chief, *self.tasks)}
        task = tasks_by_name.get(requested.task or self.chief.name)
        if task is None:
            raise WorkloadError(f"{name!r}: there is no task {requested.task}; expected {', '.join(tasks_by_name)}")
        if requested.kind is None:
            return task.device
        found = next(
            (
                full_name
                for full_name in task.devices
                if devices.Device(task.name, requested.kind, requested.number or 0).covers(devices.parse(full_name))
            ),
            None,
        )
        if found is None:
            has = ", ".join(devices.parse(one).name_in_task for one in task.devices)
            self.notice(f"{task.name} has no {requested.name_in_task}, it has {has}: its operations run on its CPU")
        return found or task.cpu

    def each(self, function: Callable[..., Result], *items: Sequence[Any]) -> list[Result]:
        """Call `function(task, item, ...)` for all tasks at once, on their best devices; return the results in the tasks' order.

        `items` are sequences with one item for each task.
        """

        def run_on(task: Task, *item: Any) -> Result:
            with self.log.watch(), tf.device(task.device):
                return function(task, *item)

        calls = list(zip(self.tasks, *items, strict=True))
        with ThreadPoolExecutor(len(calls), thread_name_prefix="task") as pool:
            return list(pool.map(lambda call: run_on(*call), calls))

    def show(self, name: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table to the chief's log, and write it to `results/<name>.txt`."""
        text = "\n".join(table(headers, rows))
        print(text, flush=True)
        self.write(f"{name}.txt", text + "\n")

    def write(self, name: str, content: str | bytes) -> None:
        """Write a file into `results` atomically."""
        write_atomically(self.results / name, content)
