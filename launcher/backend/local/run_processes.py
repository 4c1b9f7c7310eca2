"""The tasks of a local run as processes of this machine: their output and exits, for the controller that supervises the run.

One loop waits for output, signals and deadlines. Imports neither TensorFlow nor a library for terminals.
launcher.runs.spawn starts it as `python -m launcher.backend.local RUN_DIR`.
"""

import contextlib
import os
import selectors
import shutil
import signal

from launcher import files
from launcher.backend.local.lifelines import Lifelines
from launcher.backend.local.process_task import ProcessTask
from launcher.backend.local.signal_pipe import SignalPipe
from launcher.plan.addresses import LOOPBACK, with_addresses
from launcher.plan.models import Plan
from launcher.plan.plan_json import to_document
from launcher.runs import orphans, ports, run_json, stop_order
from launcher.runs.paths import RunPaths
from launcher.runs.process_identity import Identity
from launcher.runs.run_controller import RunBackend, RunController, RunOutcome
from launcher.runs.status import Location

# Without a handler SIGHUP would end the supervisor; the controller ignores it.
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
# SIGCHLD should wake the loop; this bounds the delay if it does not.
_LONGEST_SLEEP = 1.0


def controller(paths: RunPaths, plan: Plan, lifeline: int | None) -> RunController:
    """Return the controller of a local run. Raises OSError, or LauncherError if not enough ports are free."""
    cluster_tasks = [task.name for task in plan.tasks if task.role != "evaluator"]
    reservation = ports.reserve(len(cluster_tasks))
    plan = with_addresses(plan, {name: f"{LOOPBACK}:{port}" for name, port in zip(cluster_tasks, reservation.ports, strict=True)})
    processes = RunProcesses(paths, plan, reservation, lifeline)
    return RunController(paths, plan, processes.tasks, processes)


class RunProcesses(RunBackend):
    """The processes of one run."""

    name = "local"

    def __init__(self, paths: RunPaths, plan: Plan, reservation: ports.PortReservation, lifeline: int | None) -> None:
        self._paths, self._plan, self._ports = paths, plan, reservation
        self.location = Location("directory", str(paths.run_dir))
        lifelines = Lifelines(stop_order.stop_groups(plan))
        self.tasks = [ProcessTask(task, paths, lifelines, self._follow) for task in plan.tasks]
        self._selector = selectors.DefaultSelector()
        self._signals = SignalPipe(_SIGNALS)
        self._selector.register(self._signals, selectors.EVENT_READ, self._read_signals)
        if lifeline is not None:
            os.set_blocking(lifeline, False)
            self._selector.register(lifeline, selectors.EVENT_READ, lambda run: self._read_lifeline(lifeline, run))

    def start(self) -> None:
        """Start every task. Raises OSError if the system refuses."""
        shutil.rmtree(self._paths.scratch, ignore_errors=True)  # an earlier run's stop files would stop this run's servers
        self._paths.scratch.mkdir()
        files.write_json(self._paths.plan, to_document(self._plan))
        for task in self.tasks:
            task.start()

    def wait(self, run: RunController, timeout: float | None) -> None:
        """Wait for output, a signal or the end of a process, and report it."""
        for key, _ in self._selector.select(_LONGEST_SLEEP if timeout is None else min(timeout, _LONGEST_SLEEP)):
            key.data(run)
        for task in self.tasks:
            if task.running and (code := task.poll()) is not None:
                self._forget(task)
                for event in task.finish(code):
                    run.on_event(task, event)
                run.on_exit(task, code)

    def close(self, run: RunController) -> None:
        """Do nothing: the output of a process that has ended was read to its end."""

    def processes(self) -> dict[str, Identity]:
        """Return the tasks' session leaders, also those that have ended."""
        return {task.name: task.identity for task in self.tasks if task.identity is not None}

    def on_directory_lost(self) -> bool:
        """Have every task killed: saving would create the removed directory again."""
        return True

    def clean_up(self, outcome: RunOutcome) -> None:
        """Record the outcome in run.json and remove the scratch directory; if the run's directory was removed, remove what tasks recreated."""
        if outcome.lost_at is None:
            if any(stop_order.runs_built_in_trainer(task) for task in self._plan.tasks):
                run_json.record_outcome(self._paths, outcome.state, outcome.reason)
            shutil.rmtree(self._paths.scratch, ignore_errors=True)
        elif not self._paths.lock.exists():  # otherwise another run is starting there, and removes it
            orphans.remove_recreated(self._paths, outcome.lost_at)
        self._ports.close()

    def _follow(self, task: ProcessTask, output: int) -> None:
        self._selector.register(output, selectors.EVENT_READ, lambda run: self._read(task, run))

    def _read(self, task: ProcessTask, run: RunController) -> None:
        events, more = task.read()
        for event in events:
            run.on_event(task, event)
        if not more:
            # It has closed its output but still runs; `wait` notices its exit.
            self._forget(task)

    def _read_signals(self, run: RunController) -> None:
        for number in self._signals.read():
            run.on_stop_request(number)

    def _read_lifeline(self, lifeline: int, run: RunController) -> None:
        with contextlib.suppress(BlockingIOError):
            if os.read(lifeline, 4096) == b"":
                self._selector.unregister(lifeline)
                run.on_stop_request(None)

    def _forget(self, task: ProcessTask) -> None:
        if task.output is not None and task.output in self._selector.get_map():
            self._selector.unregister(task.output)
