"""The status of a run from its containers: for runs without a supervisor, such as those of `docker compose up`."""

import contextlib
import heapq
import time
from collections.abc import Iterable, Iterator
from typing import Any

from docker.errors import NotFound
from docker.models.containers import Container

from launcher import images, timestamps
from launcher.backend.docker import log_stream
from launcher.backend.docker.container_tracker import RUNNING, ContainerTracker
from launcher.backend.docker.engine import Engine
from launcher.plan import role_rules
from launcher.plan.addresses import TENSORBOARD_PORT, url_host
from launcher.plan.container_paths import CONTAINER_RUNS
from launcher.render import labels
from launcher.runs.progress import STATUS_LINES, RunProgress
from launcher.runs.reasons import with_remedy
from launcher.runs.status import ENDED, Location, LogLine, RunStatus, State, TaskStatus

_POLL_INTERVAL = 0.5


def task_name(container: Container) -> str | None:
    """Return the task in a container; None for other containers, such as TensorBoard's."""
    name: str | None = container.labels.get(labels.TASK)
    return name


def by_task(containers: Iterable[Container]) -> dict[str, Container]:
    """Return the tasks' containers by task, in the order of plans."""
    tasks = {name: container for container in containers if (name := task_name(container))}
    return dict(sorted(tasks.items(), key=lambda item: _sort_key(item[0])))


def _sort_key(task: str) -> tuple[int, int]:
    role, index = role_rules.role_and_index(task)
    return role_rules.role_position(role), index or 0


def tensorboard_url(containers: Iterable[Container]) -> str:
    """Return TensorBoard's URL; empty if it does not run."""
    for container in containers:
        if container.labels.get(labels.SERVICE) == labels.TENSORBOARD and container.status == "running":
            bound = (container.attrs["NetworkSettings"]["Ports"] or {}).get(f"{TENSORBOARD_PORT}/tcp") or []
            return f"http://{url_host(bound[0]['HostIp'])}:{bound[0]['HostPort']}" if bound else ""
    return ""


def status(engine: Engine, name: str, containers: list[Container]) -> RunStatus:
    """Return the status of a run from its containers, at least one. Raises one of engine.ERRORS."""
    tasks = by_task(containers)
    trackers = {
        task: ContainerTracker(task, has_parent=_has_parent(container), hardened_user_image=_has_hardened_user_image(container))
        for task, container in tasks.items()
    }
    required = [task for task, container in tasks.items() if container.labels.get(labels.REQUIRED) == "true"]
    progress = RunProgress()
    for task, container in tasks.items():
        trackers[task].update(container.attrs["State"], container.attrs["RestartCount"])
        for _, line in _read(engine, container, task, tail=STATUS_LINES):
            if (event := trackers[task].feed(line.text)) is not None:
                subject = trackers.get(str(event.get("task")), trackers[task])
                subject.apply(event, self_reported=subject is trackers[task])
                progress.apply(event, is_leader=task == next(iter(required), None) and subject is trackers[task])
    statuses = tuple(tracker.status() for tracker in trackers.values())
    ready = progress.ready or any(tracker.state()[0] is State.RUNNING for tracker in trackers.values() if not tracker.has_parent)
    state, reason, reason_task = run_state(statuses, required, ready=ready)
    ended = state in ENDED
    started = [seconds for container in tasks.values() if (seconds := timestamps.parse_rfc3339(container.attrs.get("Created"))) is not None]
    ends = [task.ended for task in statuses if task.ended is not None]
    run_labels = next(iter(containers)).labels
    return RunStatus(
        name=name,
        backend="docker",
        state=state,
        reason=reason,
        reason_task=reason_task,
        run_dir=location_of(containers, name),
        spec_digest=run_labels.get(labels.DIGEST, ""),
        strategy=run_labels.get(labels.STRATEGY, ""),
        started=min(started, default=None),
        ended=max(ends, default=None) if ended else None,
        tensorboard=tensorboard_url(containers),
        tasks=statuses,
        **progress.fields(ended=ended),
    )


def _read(engine: Engine, container: Container, task: str, **selection: Any) -> Iterator[tuple[str, LogLine]]:
    """Yield the lines of a container's log; none if it was removed since it was listed. Raises one of engine.ERRORS."""
    with contextlib.suppress(NotFound):
        yield from log_stream.read(engine.client, str(container.id), task, has_parent=_has_parent(container), **selection)


def _has_parent(container: Container) -> bool:
    return role_rules.starts_parent(container.attrs["Config"]["Cmd"] or ())


def _has_hardened_user_image(container: Container) -> bool:
    """Return whether a container is hardened and its image is the user's own."""
    return bool(container.attrs["HostConfig"].get("ReadonlyRootfs")) and not images.is_trainer_image(container.attrs["Config"]["Image"])


def run_state(tasks: tuple[TaskStatus, ...], required: list[str], *, ready: bool) -> tuple[State, str, str]:
    """Return a run's state from its tasks' states, with the reason and the task whose reason it is; `ready`: whether the run trains."""
    states = {task.name: task.state for task in tasks}
    if required and all(states.get(name) is State.SUCCEEDED for name in required):
        return State.SUCCEEDED, "", ""
    if any(state not in ENDED for state in states.values()):
        return (State.RUNNING if ready else State.PENDING), "", ""
    failed = [task for task in tasks if task.state is State.FAILED]
    if failed:
        first = min(failed, key=lambda task: task.ended or 0.0)
        reason = with_remedy(f"{first.name} failed (exit code {first.exit_code}): {first.reason}", first.remedy)
        return State.FAILED, reason, first.name
    return State.STOPPED, "its containers were stopped", ""


def location_of(containers: list[Container], name: str) -> Location | None:
    """Return where the run stores its files: a volume of the engine; None if its containers have none."""
    for container in containers:
        for mount in container.attrs.get("Mounts") or []:
            if mount.get("Destination") == CONTAINER_RUNS:
                return Location("volume", str(mount.get("Name") or mount.get("Source")))
    variables = [variable for container in containers for variable in container.attrs.get("Config", {}).get("Env") or ()]
    has_no_volume = containers and not any(variable.startswith("RUN_DIR=") for variable in variables)
    return None if has_no_volume else Location("volume", volume_of(name))


def volume_of(name: str) -> str:
    """Return the name of the volume that Compose creates for a run."""
    return f"{name}_run"


def lines(engine: Engine, name: str, tasks: list[str], *, follow: bool, since: float | None, tail: int | None) -> Iterator[LogLine]:
    """Yield the output of a run's tasks in order of time, with `follow` until the run has ended. Raises one of engine.ERRORS."""
    seen: dict[str, str] = {}
    first = True
    while True:
        containers = by_task(engine.containers(name))
        # Checked before reading, so that the reading that follows gets everything up to the end.
        is_last_read = not follow or not any(container.status in {"created", *RUNNING} for container in containers.values())
        by_time: list[list[LogLine]] = []
        for task, container in containers.items():
            if tasks and task not in tasks:
                continue
            # At least one line, which shows from where on lines are new.
            new = list(_read(engine, container, task, after=seen.get(task, ""), tail=max(tail, 1) if first and tail is not None else None))
            seen[task] = new[-1][0] if new else seen.get(task, "")
            new = [] if first and tail == 0 else new
            by_time.append([line for _, line in new if since is None or line.time >= since])
        any_line = False
        for line in heapq.merge(*by_time, key=lambda line: line.time):
            any_line = True
            yield line
        if is_last_read:
            return
        first = False
        if not any_line:
            time.sleep(_POLL_INTERVAL)


def status_of_volume(volume: Any, name: str) -> RunStatus:
    """Return the status of a run that has only its volume left."""
    run_labels = volume.attrs.get("Labels") or {}
    return RunStatus(
        name=name,
        backend="docker",
        state=State.STOPPED,
        reason="its containers were removed; `up` continues from its last checkpoint",
        run_dir=Location("volume", volume.name),
        spec_digest=run_labels.get(labels.DIGEST, ""),
        strategy=run_labels.get(labels.STRATEGY, ""),
        started=timestamps.parse_rfc3339(volume.attrs.get("CreatedAt")),
    )
