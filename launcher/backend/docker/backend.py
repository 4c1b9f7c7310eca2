"""The Docker backend: the calls behind the CLI's verbs.

A run that the launcher started has a supervisor process, which writes the run's status to files, as a local supervisor does. Runs without
a supervisor, because `docker compose up` started them or the supervisor was killed, are found by the labels of their containers.
"""

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docker.models.containers import Container

from launcher import files, timestamps
from launcher.backend.docker import container_status
from launcher.backend.docker.engine import COMPOSE_TIMEOUT, Engine, compose, endpoint, translate_errors
from launcher.backend.docker.stop import grace_of, stop_running
from launcher.backend.model import PlannedRun, TensorBoardAddress, spec_of
from launcher.errors import LauncherError, UsageError, check_tasks, did_you_mean
from launcher.notify import delivery
from launcher.plan.models import Plan
from launcher.plan.plan_json import from_document
from launcher.render import labels
from launcher.runs import locks, ports, process_identity, spawn, state_file
from launcher.runs.artifacts import Artifact, ArtifactStream, missing_artifact_error, still_running_error
from launcher.runs.os_errors import translate_os_errors
from launcher.runs.paths import DOCKER_STATE_DIR, RunPaths
from launcher.runs.reasons import ASKED_TO_STOP, ASKED_TO_STOP_AT_ONCE, killed_task_messages
from launcher.runs.status import ENDED, Location, LogLine, RunStatus, State, TaskStatus
from launcher.runs.supervised_runs import SupervisedRuns
from launcher.spec.role_programs import sets_variables

# The spec's models take as long to import as everything else here, and most verbs need no spec.
if TYPE_CHECKING:
    from launcher.spec.models import ClusterSpec
    from trainer.stacks import ProcessStacks

BACKEND = "docker"
_SUPERVISOR = "launcher.backend.docker"
_START_MARGIN = 300.0  # seconds beyond Compose's own time: an engine that removes an earlier run may be slow
_LOCK_TIMEOUT, _LOCK_STEP = 600.0, 0.5  # a stop takes as long as the slowest task's grace period


class DockerBackend:
    """Runs plans as containers; the files about a run are in `runs`/.docker/<name>. See launcher.backend.model.Backend."""

    def __init__(self, runs: Path) -> None:
        self._supervised = SupervisedRuns(runs / DOCKER_STATE_DIR, BACKEND)

    @cached_property
    def _engine(self) -> Engine:
        return Engine(endpoint())

    def prepare(self, run: PlannedRun) -> Iterator[str]:
        """Find or build the image; yield messages that say which one, and why."""
        from launcher.backend.docker import preparation

        return preparation.prepare(spec_of(run.spec), self._engine.endpoint)

    def start(self, run: PlannedRun, *, is_cancelled: Callable[[], bool] | None = None) -> None:
        """Start the containers; return once each has started. Raises UsageError if the run is already running."""
        plan, spec = run.plan, run.spec
        paths = self._paths(plan.name)
        with translate_os_errors(f"starting the run {plan.name}"):
            lock_fd = spawn.lock(paths)
            try:
                earlier = self._containers(plan.name)
                self._write_compose_file(paths, plan, self._with_free_port(earlier, spec))
                timeout = supervisor_start_timeout(plan, max(map(grace_of, earlier), default=0))
                lifeline = spawn.start(
                    paths, plan, spec, lock_fd=lock_fd, is_cancelled=is_cancelled, supervisor=_SUPERVISOR, timeout=timeout
                )
            finally:
                os.close(lock_fd)
        self._supervised.hold_lifeline(plan.name, lifeline)

    def _containers(self, name: str) -> list[Container]:
        """Return the containers of a run. Raises LauncherError."""
        with translate_errors(f"looking for containers of {name}"):
            return self._engine.containers(name)

    def _with_free_port(self, earlier: list[Container], spec: dict[str, Any]) -> dict[str, Any]:
        """Return the spec with a port for TensorBoard: its own if that is free, or the run's `earlier` TensorBoard has it, else the next free one."""
        requested = spec.get("tensorboard")
        if not requested or not self._engine.endpoint.is_local:
            return spec
        if container_status.tensorboard_url(earlier).endswith(f":{requested['port']}"):
            return spec
        port = ports.next_free(requested["host"], requested["port"]) or requested["port"]
        return {**spec, "tensorboard": {**requested, "port": port}}

    def _write_compose_file(self, paths: RunPaths, plan: Plan, spec: dict[str, Any]) -> None:
        from launcher.render.compose import render
        from launcher.render.targets import RenderSource

        text = render(RenderSource(spec_of(spec), plan, paths.launcher_dir, f"launcher up --on docker (run {plan.name})"))
        files.write(paths.compose, text, private=sets_variables(spec))

    def status(self, name: str) -> RunStatus:
        """Return the status of the run. Raises UsageError if no run has that name."""
        paths = self._paths(name)
        if locks.held(paths.lock):
            return self._supervised.status(name)
        if not self._supervised.holds_lifeline(name) or paths.state.exists():
            return self._status(paths)
        try:
            return _removed(paths, self._status(paths))
        except UsageError:  # its volume is gone, too
            return _removed(paths, RunStatus(name, BACKEND, State.STOPPED))

    def _status(self, paths: RunPaths) -> RunStatus:
        name = paths.name
        snapshot = state_file.read(paths.state)
        with translate_errors(f"looking for the run {name}"):
            containers = self._engine.containers(name)
            if snapshot is not None and _is_current(snapshot.status, containers):
                return dataclasses.replace(_with_tensorboard(snapshot.status, containers), notified=delivery.read_outcomes(paths.notified))
            if container_status.by_task(containers):
                return container_status.status(self._engine, name, containers)
            if snapshot is not None:
                return self._supervised.status(name)
            for volume in self._engine.volumes(name):
                return container_status.status_of_volume(volume, name)
        known = sorted(status.name for status in self.runs())
        runs = f"the runs on this engine are {', '.join(known)}" if known else "there are no runs on this engine"
        raise UsageError(f"there is no run {name}", f"{did_you_mean(name, known)}{runs}; start one with `launcher up --on docker`")

    def spec(self, name: str) -> dict[str, Any] | None:
        """Return the spec that the run was started with last, or None."""
        return self._supervised.spec(name)

    def runs(self) -> list[RunStatus]:
        """Return the status of every run that this directory or the engine knows, newest first."""
        with translate_errors("listing the runs"):
            labelled = [container.labels.get(labels.RUN) for container in self._engine.containers()]
            labelled += [(volume.attrs.get("Labels") or {}).get(labels.RUN) for volume in self._engine.volumes()]
        supervised = [status.name for status in self._supervised.runs()]
        names = dict.fromkeys([*supervised, *(name for name in labelled if name)])
        statuses = []
        for name in names:
            with contextlib.suppress(UsageError):  # the run was removed meanwhile, or is one of another backend
                statuses.append(self.status(name))
        return sorted(statuses, key=lambda status: status.started or 0, reverse=True)

    def logs(self, name: str, *, tasks: list[str], follow: bool, since: float | None = None, tail: int | None = None) -> Iterator[LogLine]:
        """Yield the lines of `tasks` (of all tasks if it is empty) in order of time; `tail` counts for each task."""
        paths = self._paths(name)
        snapshot = state_file.read(paths.state)
        with translate_errors(f"reading the logs of {name}"):
            containers = [] if locks.held(paths.lock) else self._engine.containers(name)
        tasks_on_engine = container_status.by_task(containers)
        if not tasks_on_engine or (snapshot is not None and _is_current(snapshot.status, containers)):
            return self._supervised.logs(name, tasks=tasks, follow=follow, since=since, tail=tail)
        check_tasks(name, tasks, list(tasks_on_engine))
        return self._engine_lines(name, tasks, follow=follow, since=since, tail=tail)

    def _engine_lines(self, name: str, tasks: list[str], **selection: Any) -> Iterator[LogLine]:
        with translate_errors(f"reading the logs of {name}"):
            yield from container_status.lines(self._engine, name, tasks, **selection)

    def stacks(self, name: str, task: str) -> "tuple[ProcessStacks, ...]":
        """Return the current Python stacks of a task's processes. Raises LauncherError if no process can be asked for them."""
        from launcher.runs import task_stacks

        with translate_errors(f"asking {task} of {name} for its stacks"):
            container = container_status.by_task(self._engine.containers(name)).get(task)
            if container is None or container.status not in {"running", "paused"}:
                raise task_stacks.no_parent_error(task)
            if container.status == "paused":
                raise task_stacks.no_answer_error(task)
            answer: Any = container.exec_run(list(task_stacks.CLIENT), demux=True).output
        return task_stacks.parse(task, answer[0] or b"")

    def stop(self, name: str, *, now: bool = False, report: Callable[[str], object] | None = None) -> dict[str, int]:
        """Ask every task to save and stop, or kill it if `now`; return when no container or network is left. Idempotent."""
        before = self.status(name)
        paths = self._paths(name)
        if locks.held(paths.lock):
            self._supervised.stop(name, now=now)
        with _locked(paths) as locked:
            if not locked:
                return {}  # the run has stopped, and another `up` of that name has started since
            with translate_errors(f"stopping {name}"):
                stopped = not now and stop_running(self._engine.containers(name))
                if stopped:  # read again, for the checkpoint that was saved last
                    before = container_status.status(self._engine, name, self._engine.containers(name))
                removed = self._engine.remove(name)
            self._record_end(paths, before, stopped=stopped, now=now)
        if before.state not in ENDED and not now and report is not None:
            for message in killed_task_messages(self.status(name)):
                report(message)
        return removed

    def delete(self, name: str) -> None:
        """Delete the run's volume and directory. Raises UsageError while the run is running."""
        paths = self._paths(name)
        with _locked(paths) as locked:
            if not locked:
                raise still_running_error(name, BACKEND)
            with translate_errors(f"deleting the data of {name}"):
                self._engine.remove(name)
                self._engine.remove_readers(name)
                for volume in self._engine.volumes(name):
                    volume.remove()
            with translate_os_errors(f"deleting the data of {name}"):
                paths.delete()

    def rename(self, name: str, new_name: str) -> tuple[Location, ...]:
        """Copy the run's volume to one of another name, remove the old volume, and rename the directory."""
        from launcher.backend.docker import volumes

        paths = self._paths(name)
        with translate_errors(f"renaming the run {name}"):
            self._engine.remove(name)
            volume = volumes.rename(self._engine, name, new_name, _known_spec(paths))
        directory = Location("directory", str(paths.rename(new_name))) if paths.run_dir.exists() else None
        return tuple(location for location in (volume, directory) if location)

    @contextlib.contextmanager
    def fetch(self, name: str, artifact: Artifact) -> Iterator[ArtifactStream]:
        """Open an artifact of the run for a `with` block. Raises UsageError if there is none."""
        from launcher.backend.docker import volumes

        spec = _known_spec(self._paths(name))
        with translate_errors(f"reading the {artifact} of {name}"):
            if not self._engine.volumes(name):
                self.status(name)  # raises UsageError if there is no such run
                raise missing_artifact_error(name, artifact, ())
            with volumes.open_artifact(self._engine, name, artifact, spec) as stream:
                yield stream

    def tensorboard(self, name: str, *, host: str | None, port: int | None) -> TensorBoardAddress:
        """Have TensorBoard serve the run's logs, at `host` and `port` if given; return its address."""
        status = self.status(name)
        paths = self._paths(name)
        if status.tensorboard and host is None and port is None:
            return TensorBoardAddress(status.tensorboard)
        if not paths.compose.is_file():
            raise UsageError(
                f"{paths.launcher_dir} has no {paths.compose.name}: the run {name} was not started from here",
                "start its service with `docker compose -f FILE up -d tensorboard`; FILE is the Compose file of the run",
            )
        with translate_errors(f"looking for the logs of {name}"):
            has_logs = bool(self._engine.volumes(name))
        spec = files.read_json(paths.spec)
        if spec is not None and spec.get("tensorboard") is False:
            remedy = f"remove `tensorboard: false`, and start it again; or copy the logs here: launcher get {name} logs --on docker"
            raise UsageError(f"the spec of the run {name} has `tensorboard: false`", remedy)
        if spec is not None and not spec.get("storage"):
            raise UsageError(f"the run {name} has no volume, and so no TensorBoard", "write `storage: {}` in its spec, and start it again")
        if spec is None or not has_logs:
            raise UsageError(f"the run {name} has no logs: it was never started", "start it with `launcher up --on docker`")
        spec["tensorboard"] |= {key: value for key, value in (("host", host), ("port", port)) if value}
        if not port:
            spec = self._with_free_port(self._containers(name), spec)
        if paths.plan.is_file():
            self._write_compose_file(paths, from_document(files.read_json(paths.plan) or {}), spec)
        compose(name, paths.compose, "up", "--detach", "--no-deps", labels.TENSORBOARD, action=f"starting TensorBoard of {name}")
        with translate_errors(f"starting TensorBoard of {name}"):
            url = container_status.tensorboard_url(self._engine.containers(name))
        if not url:
            raise LauncherError(f"TensorBoard of {name} ended at once", f"read its output: docker logs {name}-{labels.TENSORBOARD}-1")
        return TensorBoardAddress(url)

    def _paths(self, name: str) -> RunPaths:
        return self._supervised.paths(name)

    def _record_end(self, paths: RunPaths, before: RunStatus, *, stopped: bool, now: bool) -> None:
        """Record the end in the run's state file, if there is one.

        `before`: the status until now; `stopped`: whether tasks had to be stopped; `now`: whether those that ran were killed.
        """
        snapshot = state_file.read(paths.state)
        if snapshot is None:
            return
        status = snapshot.status
        if status.state not in ENDED or stopped:  # its supervisor was killed, or gave up an engine that came back later
            ended_before = before.state in ENDED and not stopped
            asked = State.STOPPED, ASKED_TO_STOP_AT_ONCE if now else ASKED_TO_STOP
            state, reason = (before.state, before.reason) if ended_before or before.state is State.SUCCEEDED else asked
            ended = time.time()
            status = before.with_end(state, reason, ended, tasks=tuple(_ended(task, ended) for task in before.tasks))
        with translate_os_errors(f"noting that {paths.name} has ended"):
            state_file.write(paths.state, dataclasses.replace(snapshot, status=dataclasses.replace(status, tensorboard="")))


def _ended(task: TaskStatus, ended: float) -> TaskStatus:
    """Return the status of a task whose container was removed: one that still ran was killed."""
    if task.state in ENDED:
        return task
    return dataclasses.replace(task, state=State.STOPPED, reason="killed" if task.state is State.RUNNING else "", ended=ended)


def supervisor_start_timeout(plan: Plan, earlier_grace: float) -> float:
    """Return the seconds within which the supervisor has to report that the containers have started.

    The sum of a margin, the `earlier_grace` in which containers of an earlier run save, and the longest time that Compose may take.
    """
    return _START_MARGIN + earlier_grace + max(plan.start_timeout, COMPOSE_TIMEOUT)


def _known_spec(paths: RunPaths) -> "ClusterSpec | None":
    """Return the spec that the run was started with last; None if there is none, or if another version of the launcher has written it."""
    stored = files.read_json(paths.spec)
    try:
        return None if stored is None else spec_of(stored)
    except LauncherError:
        return None


@contextlib.contextmanager
def _locked(paths: RunPaths) -> Iterator[bool]:
    """Lock the run for a `with` block, so that no `up` starts it; False if one has. A run without files on this machine has no lock."""
    if not paths.launcher_dir.is_dir():
        yield True
        return
    lock_fd = None
    deadline = time.monotonic() + _LOCK_TIMEOUT
    with translate_os_errors(f"locking the run {paths.name}"):
        # Wait for another `down`, but not for a supervisor.
        while lock_fd is None and time.monotonic() < deadline and not _has_supervisor(paths):
            lock_fd = locks.acquire(paths.lock, timeout=_LOCK_STEP)
    try:
        yield lock_fd is not None
    finally:
        if lock_fd is not None:
            os.close(lock_fd)


def _has_supervisor(paths: RunPaths) -> bool:
    """Return whether a live supervisor holds the run's lock."""
    snapshot = state_file.read(paths.state) if locks.held(paths.lock) else None
    return snapshot is not None and snapshot.supervisor is not None and process_identity.alive(snapshot.supervisor)


def _removed(paths: RunPaths, status: RunStatus) -> RunStatus:
    """Return the status of a run that this process follows and whose directory was removed; `status` is that of its containers."""
    if status.state not in ENDED or status.state is State.SUCCEEDED:
        return status
    reason = f"{paths.run_dir} was removed while the run ran" + (f"; {status.reason}" if status.reason else "")
    return status.with_end(State.FAILED, reason, time.time(), reason_task=status.reason_task)


def _is_current(status: RunStatus, containers: list[Container]) -> bool:
    """Return whether the supervisor's last status still holds: the supervisor has seen the end, and no task has been started since."""
    if status.state not in ENDED or _restarted_since(containers, status.ended):
        return False
    # A supervisor that got no more answers from the engine does not know how the containers continued.
    return status.state is not State.INTERRUPTED or not container_status.by_task(containers)


def _restarted_since(containers: list[Container], ended: float | None) -> bool:
    """Return whether a task was started after the recorded end of the run."""
    starts = [
        timestamps.parse_rfc3339(container.attrs["State"].get("StartedAt")) for container in container_status.by_task(containers).values()
    ]
    return any(start is not None and ended is not None and start > ended for start in starts)


def _with_tensorboard(status: RunStatus, containers: list[Container]) -> RunStatus:
    if status.state is State.STOPPED or not containers:
        return status
    return dataclasses.replace(status, tensorboard=container_status.tensorboard_url(containers))
