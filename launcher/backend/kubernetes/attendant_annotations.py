"""Annotations that an attendant writes on its own Job: how the run ended, and the last lines of deleted pods. They are deleted with the run."""

import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from launcher.backend.kubernetes import pod_status, run_record
from launcher.backend.kubernetes.client import as_json
from launcher.backend.kubernetes.object_fields import Object
from launcher.backend.kubernetes.pod_logs import has_parent
from launcher.runs.status import RunStatus
from trainer.events import escaped

STATUS_ANNOTATION = "tf-launcher/status"
LINES_ANNOTATION = "tf-launcher/last-lines"
# All annotations of an object may have 256 KiB: https://github.com/kubernetes/apimachinery/blob/master/pkg/api/validation/objectmeta.go
_MAX_STATUS_SIZE = 120_000
_MAX_LINES_SIZE = 100_000
MAX_LINES, _MAX_LINE_LENGTH = 20, 500  # lines of a pod, and characters of a line


@dataclass(frozen=True)
class DeletedPod:
    """A deleted pod: its name, its task, and its last lines, each after its timestamp."""

    name: str
    task: str
    lines: tuple[str, ...]


def status_annotation(status: RunStatus) -> dict[str, str]:
    """Return the annotation with the end of a run, with less about its tasks if they are many."""
    return {STATUS_ANNOTATION: run_record.status_to_json(status, _MAX_STATUS_SIZE)}


def final(job: Object | None) -> RunStatus | None:
    """Return the end of the run that its attendant's Job records; None if it records none."""
    return run_record.status_from_json(pod_status.annotation(job, STATUS_ANNOTATION)) if job else None


def lines_annotation(pods: Iterable[DeletedPod]) -> dict[str, str]:
    """Return the annotation with the last lines of pods: of the newest pods, as many as fit."""
    newest: deque[dict[str, object]] = deque()
    available = _MAX_LINES_SIZE
    for pod in reversed(list(pods)):
        item: dict[str, object] = {"pod": pod.name, "task": pod.task, "lines": [line[:_MAX_LINE_LENGTH] for line in pod.lines[-MAX_LINES:]]}
        available -= len(as_json(item)) + 1
        if available < 0:
            break
        newest.appendleft(item)
    return {LINES_ANNOTATION: as_json(list(newest))}


def deleted_pods(job: Object | None) -> list[DeletedPod]:
    """Return the pods whose last lines the attendant has saved, in the order in which they were deleted."""
    try:
        listed = json.loads(pod_status.annotation(job, LINES_ANNOTATION)) if job else []
        return [DeletedPod(str(entry["pod"]), str(entry["task"]), tuple(map(str, entry["lines"]))) for entry in listed]
    except (ValueError, KeyError, TypeError):  # written by another version
        return []


class LastLines:
    """A LogSink that keeps the last lines of each pod."""

    def __init__(self) -> None:
        self.ended_streams = 0  # see LogSink
        self._lines: dict[str, deque[str]] = {}  # by the pods' uids
        self._after: dict[str, str] = {}  # the timestamp of the last of them: a reader asks for whole seconds, and gets some lines twice

    def write(self, pod: Object, entries: list[tuple[str, bytes]]) -> None:
        """Add lines that a pod has written."""
        uid = pod["metadata"]["uid"]
        lines, after = self._lines.setdefault(uid, deque(maxlen=MAX_LINES)), self._after.get(uid, "")
        new = [(timestamp, text) for timestamp, text in entries if timestamp > after]
        if not new:
            return
        self._after[uid] = new[-1][0]
        writes_events = has_parent(pod)
        written = ((timestamp, text if writes_events else escaped(text)) for timestamp, text in new[-MAX_LINES:])
        lines.extend(f"{timestamp} {text.decode(errors='replace')}"[:_MAX_LINE_LENGTH] for timestamp, text in written)

    def mark_read_elsewhere(self, uid: str) -> None:
        """Do nothing: it has no reads to save."""

    def pop(self, pods: Mapping[str, Object]) -> list[DeletedPod]:
        """Return and forget the last lines of these pods, given by name; pods without lines are left out."""
        found = [(name, pod_status.task_of(pod), self._lines.pop(pod["metadata"]["uid"], None)) for name, pod in pods.items()]
        return [DeletedPod(name, task, tuple(lines)) for name, task, lines in found if lines]
