"""Logs of pods: read from the API line by line, and stored on this machine, since they are lost with the pods."""

import contextlib
import json
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from launcher import timestamps
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.diagnosis import is_unresponsive, task_container
from launcher.backend.kubernetes.errors import TransientError
from launcher.backend.kubernetes.object_fields import Object, has_ended, is_being_deleted
from launcher.backend.kubernetes.pod_status import task_of
from launcher.errors import LauncherError
from launcher.plan import role_rules
from launcher.render.kubernetes.objects import TRAINER_CONTAINER
from launcher.runs.event_lines import log_line
from launcher.runs.status import LogLine
from trainer.events import escaped

_MAX_READS = 8  # logs read at the same time
_ANSWER_TIMEOUT = 5.0  # seconds, twice, since the client retries once; a lost node would never answer
_MIN_PAUSE, _MAX_PAUSE = 15.0, 300.0  # seconds until an unanswered log is requested again: at first, and at the most
_MAX_STREAMS = 32  # logs followed at the same time
_SILENCE_TIMEOUT = 60.0  # seconds that a followed log may be silent, for example while a task saves, before it is requested again
_RETRY_INTERVAL = 0.5  # seconds until a failed attempt to follow a log is repeated
_STREAM_INTERVAL = 10.0  # seconds between two streams of one pod, at the least; meanwhile its log is polled
# The most bytes of a stream: its node may discard a file of the log (10 MiB) during a stream, which shows only in the next request.
_MAX_STREAM_SIZE = 4 << 20
_MAX_WAITING_LINES = 20_000  # lines of streams not yet returned to a caller
_IDLE_TIMEOUT = 30.0  # seconds without a call after which streams end
_GAP_MESSAGE = "lines may be missing here: it wrote faster than they were read, and its node keeps no more of a log (containerLogMaxSize of the kubelet)"
_BEFORE_ALL = "0"  # sorts before every timestamp
# Seconds for which the log of a pod that another reader reads is not requested. A reader of hundreds of pods polls more rarely: then both request it.
_READ_ELSEWHERE_TIME = 5.0


class LogSink(Protocol):
    """Receives the lines that a PodLogs reads."""

    ended_streams: int  # so far

    def write(self, pod: Object, entries: list[tuple[str, bytes]]) -> None:
        """Take over lines read from a pod's log."""

    def mark_read_elsewhere(self, uid: str) -> None:
        """Do not read a pod for a while: another reader passes its lines on."""


class PodLogs:
    """Reads the new lines of pods' logs. It stores the lines in `directory`, if that is not None.

    `sink`: another reader, for example in another thread, that gets all lines, and so need not request them.
    """

    def __init__(self, cluster: Cluster, directory: Path | None = None, sink: LogSink | None = None) -> None:
        self._cluster, self._directory, self._sink = cluster, directory, sink
        self.unanswered = False  # whether a log could not be read in the last call of new_lines
        self._after: dict[str, str] = {}  # uid -> timestamp of the last line read
        self._first: dict[str, str] = {}  # uid -> timestamp of the first line read
        self._paths: dict[str, Path] = {}  # uid -> path below `directory` of the stored lines of a requested pod
        self._paused: dict[str, tuple[float, float]] = {}  # uid -> when it may be requested again, and the length of the pause
        self._done: set[str] = set()
        self._read_once: set[str] = set()
        self._stored_until: dict[Path, str] = {}
        self._stored_before: dict[Path, str] = {}  # timestamp of the last line that others had stored
        self._lock = threading.Lock()  # guards the progress of reading
        self._received: list[LogLine] = []
        self._read_elsewhere: dict[str, float] = {}  # uid -> until when another reader reads it
        self._streams: dict[str, tuple[threading.Thread, float]] = {}  # uid -> thread, and when it began
        self._streams_until = 0.0
        self.ended_streams = 0  # so far, of the other reader too

    def new_lines(self, pods: Iterable[Object], *, tail: int | None = None) -> list[LogLine]:
        """Return the new lines, in order of time.

        Of a pod not read before these are all lines, or the last `tail`, but at least one, so that later calls know where to continue.
        """
        with self._lock:
            self.unanswered = False
            pods = list(pods)
            self._paths |= {pod["metadata"]["uid"]: _relative_path(task_of(pod), pod["metadata"]["name"]) for pod in pods}
            requested = [pod for pod in pods if self._may_have_new_lines(pod)]
            read = [self._received]
            self._received = []
            if requested:
                with ThreadPoolExecutor(max_workers=min(_MAX_READS, len(requested))) as pool:
                    read += pool.map(lambda pod: self._read(pod, tail), requested)
        return sorted((line for lines in read for line in lines), key=lambda line: line.time)

    def write(self, pod: Object, entries: list[tuple[str, bytes]]) -> None:
        """Take over the new lines of a pod from another reader."""
        self._queue(pod, entries)
        self.mark_read_elsewhere(pod["metadata"]["uid"])

    def mark_read_elsewhere(self, uid: str) -> None:
        """Do not read a pod for a while: another reader passes its lines on."""
        self._read_elsewhere[uid] = time.monotonic() + _READ_ELSEWHERE_TIME

    def _queue(self, pod: Object, entries: list[tuple[str, bytes]]) -> None:
        with self._lock:
            self._received += self._store_new(pod, entries)

    def stream(self, pods: Iterable[Object]) -> None:
        """Stream further lines of running pods that were read, by one open request per pod; `new_lines` returns them without a request of its own.

        Call it again after each `new_lines`: a stream that ends is not opened again at once, and a pod without a stream is polled.
        """
        now = time.monotonic()
        self._streams_until = now + _IDLE_TIMEOUT
        for pod in pods:
            uid = pod["metadata"]["uid"]
            thread, since = self._streams.get(uid, (None, -_STREAM_INTERVAL))
            if thread and thread.is_alive():
                if self._sink is not None:
                    self._sink.mark_read_elsewhere(uid)
            elif now >= since + _STREAM_INTERVAL and self._may_stream(pod) and sum(map(self._is_streamed, self._streams)) < _MAX_STREAMS:
                thread = threading.Thread(target=self._stream, args=(pod,), name="log stream", daemon=True)
                self._streams[uid] = thread, now
                thread.start()

    def _may_stream(self, pod: Object) -> bool:
        uid = pod["metadata"]["uid"]
        return uid in self._read_once and uid not in self._paused and "running" in _states(pod) and self._may_have_new_lines(pod)

    def _is_streamed(self, uid: str) -> bool:
        return uid in self._streams and self._streams[uid][0].is_alive()

    def _is_needed(self, uid: str) -> bool:
        """Return whether a caller still takes the lines of a stream, and no other reader passes them on."""
        now = time.monotonic()
        return now < self._streams_until and len(self._received) < _MAX_WAITING_LINES and self._read_elsewhere.get(uid, 0.0) < now

    def _stream(self, pod: Object) -> None:
        """Read a stream until it ends, and count its end: most often its container has ended."""
        self._read_stream(pod)
        for reader in filter(None, (self, self._sink)):
            reader.ended_streams += 1

    def _read_stream(self, pod: Object) -> None:
        """Read a pod's log until it ends, or the connection breaks off; a silent one is requested again."""
        uid = pod["metadata"]["uid"]
        while self._is_needed(uid):
            opened, size = time.monotonic(), 0
            try:
                with contextlib.closing(self._follow_lines(pod)) as contents:
                    for content in contents:
                        size += len(content)
                        if size > _MAX_STREAM_SIZE or not self._is_needed(uid):
                            return
            except TransientError:
                if time.monotonic() < opened + _SILENCE_TIMEOUT:
                    return
            except LauncherError:  # it is gone, or may not be read
                return
            else:
                return

    def _follow_lines(self, pod: Object) -> Generator[bytes]:
        """Yield a pod's log as it comes, after storing it; mark a gap since the last line read."""
        after, begins = self._after.get(pod["metadata"]["uid"], _BEFORE_ALL), True
        for content in self._cluster.follow_log(pod["metadata"]["name"], TRAINER_CONTAINER, _query(after), timeout=_SILENCE_TIMEOUT):
            entries = list(_entries(content))
            if begins:
                entries = _with_gap_marked(task_of(pod), entries, after)
            begins = begins and not entries
            if self._sink is not None:
                self._sink.write(pod, entries)
            self._queue(pod, entries)
            yield content

    @contextlib.contextmanager
    def following(self, pods: Iterable[Object]) -> Iterator[None]:
        """Follow the logs of the first pods to their last lines during a `with` block, while the pods are deleted; `new_lines` returns the lines.

        Polling would miss these lines: a pod is deleted moments after its container has ended.
        """
        stopped = threading.Event()
        followed = [pod for pod in pods if _has_written(pod) and not is_unresponsive(pod) and pod["metadata"]["uid"] not in self._done]
        threads = [
            threading.Thread(target=self._follow, args=(pod, stopped), name="last lines", daemon=True) for pod in followed[:_MAX_STREAMS]
        ]
        for thread in threads:
            thread.start()
        try:
            yield
            deadline = time.monotonic() + _ANSWER_TIMEOUT
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
        finally:
            stopped.set()

    def _follow(self, pod: Object, stopped: threading.Event) -> None:
        while not stopped.is_set():
            try:
                for _ in self._follow_lines(pod):
                    pass
            except TransientError:
                pass  # it was silent for long, or its node does not answer
            except LauncherError:  # it is gone, or may not be read
                return
            stopped.wait(_RETRY_INTERVAL)  # a connection that ends need not be the container's end

    def skip_stored(self, pod: Object, directory: Path) -> None:
        """Count the stored lines of a pod as read."""
        uid, last = pod["metadata"]["uid"], _last_timestamp(directory / _relative_path(task_of(pod), pod["metadata"]["name"]))
        with self._lock:
            if last > self._after.get(uid, _BEFORE_ALL):
                self._after[uid] = last

    def discarded(self, pod: Object, directory: Path) -> list[LogLine]:
        """Return the lines of a pod that are stored here and that its node no longer has: those before the first line read. If lines between are missing, a line says so."""
        task, first = task_of(pod), self._first.get(pod["metadata"]["uid"], _BEFORE_ALL)
        path = directory / _relative_path(task, pod["metadata"]["name"])
        until = self._stored_before.get(path, _BEFORE_ALL)
        if until == _BEFORE_ALL or not path.is_file():
            return []
        entries = [entry for entry in _entries(path.read_bytes()) if entry[0] < first]
        if entries and until < first:
            entries.append(_gap(task, until))
        return [line for entry in entries if (line := _line(task, entry))]

    def stored_since(self, directory: Path, pods: Iterable[Object]) -> list[LogLine]:
        """Return in order of time the lines that another reader has stored of the pods read here, after the last line read here.

        Leave out `pods`, which still exist: their logs were read to the end. A node may return the log of a pod that is being deleted without its last lines.
        """
        known = {pod["metadata"]["uid"] for pod in pods}
        with self._lock:
            files = {path: self._after.get(uid, _BEFORE_ALL) for uid, path in self._paths.items() if uid not in known}
        lines = [line for path, after in files.items() if (directory / path).is_file() for line in _read_stored(directory / path, after)]
        return sorted(lines, key=lambda line: line.time)

    def is_unread(self, pod: Object) -> bool:
        """Return whether the last request for a pod's log failed, or its log is not requested."""
        return pod["metadata"]["uid"] in self._paused or is_unresponsive(pod)

    def _may_have_new_lines(self, pod: Object) -> bool:
        uid = pod["metadata"]["uid"]
        if is_unresponsive(pod):  # a request would only time out
            return False
        if not _has_written(pod) or uid in self._done:
            return False
        now = time.monotonic()
        # Every reader reads the last lines of a pod that has ended, or is being deleted, itself.
        is_read_elsewhere = self._read_elsewhere.get(uid, 0.0) > now or self._is_streamed(uid)
        is_skipped = is_read_elsewhere and not has_ended(pod) and not is_being_deleted(pod)
        return not is_skipped and self._paused.get(uid, (0.0, 0.0))[0] <= now

    def _read(self, pod: Object, tail: int | None) -> list[LogLine]:
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        after = self._after.get(uid, _BEFORE_ALL)
        query = _query(after)
        if after == _BEFORE_ALL and tail is not None:
            query.append(("tailLines", str(max(tail, 1))))
        try:
            content = self._cluster.log(name, TRAINER_CONTAINER, query, timeout=_ANSWER_TIMEOUT)
        except LauncherError:  # it is gone, or its node does not answer
            pause = min(2 * self._paused[uid][1], _MAX_PAUSE) if uid in self._paused else _MIN_PAUSE
            self._paused[uid] = (time.monotonic() + pause, pause)
            self.unanswered = True
            return []
        self._paused.pop(uid, None)
        self._read_once.add(uid)
        entries = _with_gap_marked(task_of(pod), list(_entries(content)), after)
        if self._sink is not None:
            self._sink.write(pod, entries)
        if has_ended(pod):
            self._done.add(uid)
        return self._store_new(pod, entries)

    def _store_new(self, pod: Object, entries: list[tuple[str, bytes]]) -> list[LogLine]:
        """Return the new lines of a pod, and store them."""
        uid, task = pod["metadata"]["uid"], task_of(pod)
        after = self._after.get(uid, _BEFORE_ALL)
        writes_events, (_, gap) = has_parent(pod), _gap(task, _BEFORE_ALL)
        new = [(timestamp, text if writes_events or text == gap else escaped(text)) for timestamp, text in entries if timestamp > after]
        if new:
            self._first.setdefault(uid, new[0][0])
            self._after[uid] = new[-1][0]
            self._store(task, pod["metadata"]["name"], new)
        return [line for entry in new if (line := _line(task, entry))]

    def _store(self, task: str, pod: str, entries: list[tuple[str, bytes]]) -> None:
        if self._directory is None:
            return
        path = self._directory / _relative_path(task, pod)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            until = self._stored_until.get(path) or _last_timestamp(path)
            self._stored_before.setdefault(path, until)
            with path.open("ab") as file:
                file.writelines(b"%s %s\n" % (timestamp.encode(), text) for timestamp, text in entries if timestamp > until)
            self._stored_until[path] = max(until, entries[-1][0])
        except OSError:  # a full disk here must not end a run in the cluster, which still has the lines
            self._directory = None


def stored_lines(directory: Path, tasks: list[str], *, except_pods: Iterable[Object] = ()) -> Iterator[LogLine]:
    """Yield the stored lines of `tasks` (all when empty), except those of `except_pods`, whose logs are read from the cluster."""
    known = {pod["metadata"]["name"] for pod in except_pods}
    for path in sorted(directory.glob("*/*.log")):
        task = path.parent.name
        if path.stem in known or (tasks and task not in tasks):
            continue
        yield from _read_stored(path, _BEFORE_ALL)


def store_last(directory: Path, task: str, pod: str, lines: Iterable[str]) -> None:
    """Store a deleted pod's last lines, `TIMESTAMP TEXT`, which its run's attendant has saved; do nothing if some are stored here."""
    path = directory / _relative_path(task, pod)
    if path.exists():
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def stored_tasks(directory: Path) -> list[str]:
    """Return the tasks that have stored lines."""
    return sorted({path.parent.name for path in directory.glob("*/*.log")})


def _relative_path(task: str, pod: str) -> Path:
    return Path(task, f"{pod}.log")


def _read_stored(path: Path, after: str) -> Iterator[LogLine]:
    """Yield the stored lines of a pod after a timestamp."""
    for timestamp, text in _entries(path.read_bytes()):
        if timestamp > after:  # two launchers that followed the run at once have stored each line twice
            after = timestamp
            if line := _line(path.parent.name, (timestamp, text)):
                yield line


def _last_timestamp(path: Path) -> str:
    """Return the greatest stored timestamp; if there is none, one that sorts before all."""
    return max((timestamp for timestamp, _ in _entries(path.read_bytes())), default=_BEFORE_ALL) if path.is_file() else _BEFORE_ALL


def has_parent(pod: Object) -> bool:
    """Return whether the trainer's parent runs in a pod, and so writes events: not above an image's entrypoint, without a `command`."""
    containers = pod.get("spec", {}).get("containers") or ()
    return all(
        role_rules.starts_parent(container.get("command") or ()) for container in containers if container.get("name") == TRAINER_CONTAINER
    )


def _has_written(pod: Object) -> bool:
    return bool(_states(pod) & {"running", "terminated"})


def _states(pod: Object) -> set[str]:
    return set(task_container(pod).get("state", {}))


def _entries(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the timestamp and the text of each line."""
    for raw in content.split(b"\n"):
        timestamp, _, text = raw.partition(b" ")
        if timestamp[:4].isdigit():
            yield timestamp.decode("utf-8", "replace"), text


def _query(after: str) -> list[tuple[str, str]]:
    """Return the query for the lines from the second in which the last line read was written; `after` is its timestamp."""
    query = [("timestamps", "true")]
    if after != _BEFORE_ALL:
        query.append(("sinceTime", f"{after[:19]}Z" if after.endswith("Z") else after))
    return query


def _with_gap_marked(task: str, entries: list[tuple[str, bytes]], after: str) -> list[tuple[str, bytes]]:
    """Return the lines, after a gap line if the node has discarded some: none is as old as the last line read, of the timestamp `after`."""
    return [_gap(task, after), *entries] if entries and _BEFORE_ALL < after < entries[0][0] else entries


def _gap(task: str, after: str) -> tuple[str, bytes]:
    """Return a line that says that a task's lines are missing, one nanosecond after the timestamp `after`."""
    second, _, rest = after.partition(".")
    timestamp = f"{second}.{int(rest.rstrip('Z').ljust(9, '0')) + 1:09}Z" if rest.endswith("Z") else after
    return timestamp, json.dumps({"event": "notice", "task": task, "message": _GAP_MESSAGE}).encode()


def _line(task: str, entry: tuple[str, bytes]) -> LogLine | None:
    time = timestamps.parse_rfc3339(entry[0])
    return None if time is None else log_line(time, task, entry[1])
