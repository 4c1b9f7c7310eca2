"""How a run is, as far as its containers tell: for runs without a supervisor, such as those of `docker compose up`."""

import contextlib
import heapq
import time
from collections.abc import Iterable, Iterator
from typing import Any

from docker.errors import NotFound
from docker.models.containers import Container

from launcher import images, timestamps
from launcher.backend.docker import log_stream
from launcher.backend.docker.container_tracker import ContainerTracker
from launcher.backend.docker.engine import Engine
from launcher.plan import role_rules
from launcher.render import labels
from launcher.runs.progress import Progress
from launcher.runs.reasons import with_remedy
from launcher.runs.status import Location, LogLine, RunStatus, State, TaskStatus

# As many lines of each task tell how it is: an evaluation, a checkpoint and each worker's progress are among them.
_LINES = 2000
_POLL_INTERVAL = 0.5
_UNDERWAY = frozenset({State.PENDING, State.RUNNING, State.RESTARTING})
_ROLES = ("chief", "worker", "ps", "evaluator")


def task_name(container: Container) -> str | None:
    """Return the task in a container, or None where it is no task: TensorBoard."""
    name: str | None = container.labels.get(labels.TASK)
    return name


def by_task(containers: Iterable[Container]) -> dict[str, Container]:
    """Return the tasks' containers by task, in the order of plans."""
    found = {name: container for container in containers if (name := task_name(container))}
    return dict(sorted(found.items(), key=lambda item: _sort_key(item[0])))


def _sort_key(task: str) -> tuple[int, int]:
    role, _, index = task.partition("-")
    return _ROLES.index(role) if role in _ROLES else len(_ROLES), int(index or 0)


def tensorboard_url(containers: Iterable[Container]) -> str:
    """Return where TensorBoard answers, or nothing when it does not run."""
    for container in containers:
        if container.labels.get(labels.SERVICE) == labels.TENSORBOARD and container.status == "running":
            bound = (container.attrs["NetworkSettings"]["Ports"] or {}).get("6006/tcp") or []
            return f"http://{_url_host(bound[0]['HostIp'])}:{bound[0]['HostPort']}" if bound else ""
    return ""


def _url_host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def status(engine: Engine, name: str, containers: list[Container]) -> RunStatus:
    """Return the status of a run from its containers, of which there is at least one. Raises one of engine.ERRORS."""
    tasks = by_task(containers)
    trackers = {
        task: ContainerTracker(task, has_trainer=_has_trainer(container), in_own_image=_in_own_image(container))
        for task, container in tasks.items()
    }
    required = [task for task, container in tasks.items() if container.labels.get(labels.REQUIRED) == "true"]
    progress = Progress()
    for task, container in tasks.items():
        trackers[task].update(container.attrs["State"], container.attrs["RestartCount"])
        for _, line in _read(engine, container, task, tail=_LINES):
            if (event := trackers[task].line(line.text)) is not None:
                about = trackers.get(str(event.get("task")), trackers[task])
                about.apply(event, own=about is trackers[task])
                progress.apply(event, is_leader=task == next(iter(required), None) and about is trackers[task])
    statuses = tuple(tracker.status() for tracker in trackers.values())
    begun = progress.ready or any(tracker.state()[0] is State.RUNNING for tracker in trackers.values() if not tracker.has_trainer)
    state, reason, of = run_state(statuses, required, ready=begun)
    ended = state not in _UNDERWAY
    started = [seconds for container in tasks.values() if (seconds := timestamps.parse_rfc3339(container.attrs.get("Created"))) is not None]
    ends = [task.ended for task in statuses if task.ended is not None]
    common = next(iter(containers)).labels
    return RunStatus(
        name=name,
        backend="docker",
        state=state,
        reason=reason,
        reason_task=of,
        run_dir=location_of(containers, name),
        spec_digest=common.get(labels.DIGEST, ""),
        strategy=common.get(labels.STRATEGY, ""),
        started=min(started, default=None),
        ended=max(ends, default=None) if ended else None,
        tensorboard=tensorboard_url(containers),
        tasks=statuses,
        **progress.fields(ended=ended),
    )


def _read(engine: Engine, container: Container, task: str, **chosen: Any) -> Iterator[tuple[str, LogLine]]:
    """Yield what there is of a container's log; nothing when somebody has removed it since it was listed. Raises one of engine.ERRORS."""
    with contextlib.suppress(NotFound):
        yield from log_stream.read(engine.client, str(container.id), task, has_trainer=_has_trainer(container), **chosen)


def _has_trainer(container: Container) -> bool:
    return role_rules.has_trainer(container.attrs["Config"]["Cmd"] or ())


def _in_own_image(container: Container) -> bool:
    """Return whether a hardened container is of another image than ours."""
    return bool(container.attrs["HostConfig"].get("ReadonlyRootfs")) and not images.is_ours(container.attrs["Config"]["Image"])


def run_state(tasks: tuple[TaskStatus, ...], required: list[str], *, ready: bool) -> tuple[State, str, str]:
    """Return how a run is from how its tasks are: its state, the reason, and the task whose that is; `ready` tells whether it trains."""
    states = {task.name: task.state for task in tasks}
    if required and all(states.get(name) is State.SUCCEEDED for name in required):
        return State.SUCCEEDED, "", ""
    if any(state in _UNDERWAY for state in states.values()):
        return (State.RUNNING if ready else State.PENDING), "", ""
    failed = [task for task in tasks if task.state is State.FAILED]
    if failed:
        first = min(failed, key=lambda task: task.ended or 0.0)
        reason = with_remedy(f"{first.name} failed (exit code {first.exit_code}): {first.reason}", first.remedy)
        return State.FAILED, reason, first.name
    return State.STOPPED, "its containers were stopped", ""


def location_of(containers: Iterable[Container], name: str) -> Location | None:
    """Return where the run stores its files: a volume of the engine; None where its containers have none."""
    known = list(containers)
    for container in known:
        for mount in container.attrs.get("Mounts") or []:
            if mount.get("Destination") == "/runs":
                return Location("volume", str(mount.get("Name") or mount.get("Source")))
    variables = [variable for container in known for variable in container.attrs.get("Config", {}).get("Env") or ()]
    has_none = known and not any(variable.startswith("RUN_DIR=") for variable in variables)
    return None if has_none else Location("volume", volume_of(name))


def volume_of(name: str) -> str:
    """Return the volume that Compose makes for a run."""
    return f"{name}_run"


def lines(engine: Engine, name: str, tasks: list[str], *, follow: bool, since: float | None, tail: int | None) -> Iterator[LogLine]:
    """Yield the output of a run's tasks in order of time, with `follow` until it has ended. Raises one of engine.ERRORS."""
    seen: dict[str, str] = {}
    first = True
    while True:
        containers = by_task(engine.containers(name))
        # Asked before reading: what was written until the end is read after it.
        over = not follow or not any(
            container.status in {"created", "running", "paused", "restarting"} for container in containers.values()
        )
        found: list[Iterable[tuple[float, LogLine]]] = []
        for task, container in containers.items():
            if tasks and task not in tasks:
                continue
            new = list(_read(engine, container, task, after=seen.get(task, ""), tail=tail if first else None))
            seen[task] = new[-1][0] if new else seen.get(task, "")
            found.append([(line.time, line) for _, line in new if since is None or line.time >= since])
        any_line = False
        for _, line in heapq.merge(*found, key=lambda pair: pair[0]):
            any_line = True
            yield line
        if over:
            return
        first = False
        if not any_line:
            time.sleep(_POLL_INTERVAL)


def of_volume(volume: Any, name: str) -> RunStatus:
    """Return the status of a run of which only its volume is left."""
    common = volume.attrs.get("Labels") or {}
    return RunStatus(
        name=name,
        backend="docker",
        state=State.STOPPED,
        reason="its containers were removed; `up` goes on from its last checkpoint",
        run_dir=Location("volume", volume.name),
        spec_digest=common.get(labels.DIGEST, ""),
        strategy=common.get(labels.STRATEGY, ""),
        started=timestamps.parse_rfc3339(volume.attrs.get("CreatedAt")),
    )
