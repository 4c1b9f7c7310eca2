"""Logs of pods: read from the API line by line, and stored on this machine for when the pods are gone."""

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
from launcher.backend.kubernetes.diagnosis import is_unresponsive
from launcher.backend.kubernetes.errors import UnreachableError
from launcher.backend.kubernetes.pod_status import Object, task_of
from launcher.errors import LauncherError
from launcher.plan import role_rules
from launcher.render.kubernetes.objects import TRAINER
from launcher.runs.event_lines import log_line
from launcher.runs.status import LogLine
from trainer.events import escaped

_AT_ONCE = 8  # logs read at the same time
_ANSWER_TIMEOUT = 5.0  # seconds, and as many once more, as the client asks twice; a node that is lost would let us wait forever
_MUTED = (15.0, 300.0)  # seconds for which such a log is not asked for again: at first, and at the most
_TO_THE_END = 32  # logs followed at the same time
_QUIET = 60.0  # seconds in which one that is followed may say nothing, for example while it saves, and is not asked for again
_RETRY_INTERVAL = 0.5  # seconds until one that could not be followed is followed again
_STREAM_INTERVAL = 10.0  # seconds between two streams of one pod, at the least; meanwhile its log is asked for again and again
# A stream brings no more bytes than these: its node may discard a file of the log (10 MiB) between two that it sends, which only the next request tells.
_MAX_STREAM_SIZE = 4 << 20
_MAX_UNTAKEN = 20_000  # lines of streams that no caller has taken yet
_ABANDONED = 30.0  # seconds after which streams end if no caller takes their lines
_MISSING = "lines may be missing here: it wrote faster than they were read, and its node keeps no more of a log (containerLogMaxSize of the kubelet)"
_FIRST = "0"  # sorts before every stamp
# Seconds for which a pod that another reader reads is not asked for. A reader of hundreds of pods looks more seldom: then both ask.
_TRUSTED = 5.0


class LogSink(Protocol):
    """Another reader, which takes over the lines that one reads."""

    ended: int

    def write(self, pod: Object, pieces: list[tuple[str, bytes]]) -> None:
        """Take over what was read of a pod."""

    def trust(self, uid: str) -> None:
        """Leave a pod for a while to the reader that passes its lines on."""


class PodLogs:
    """Reads what pods wrote since they were read last. `directory` is where the lines are stored, None for nowhere.

    It passes all that it reads on to another reader, `sink`, such as one in another thread, which then need not ask for it.
    """

    def __init__(self, cluster: Cluster, directory: Path | None = None, sink: LogSink | None = None) -> None:
        self._cluster, self._directory, self._sink = cluster, directory, sink
        self.unanswered = False  # a log, when it read last
        self._after: dict[str, str] = {}  # uid -> the stamp of the last line read
        self._first: dict[str, str] = {}  # uid -> that of the first
        self._asked: dict[str, Path] = {}  # uid -> where the lines of a pod that was asked for are stored, below `directory`
        self._muted: dict[str, tuple[float, float]] = {}  # uid -> until when, and for how long
        self._done: set[str] = set()
        self._read_once: set[str] = set()
        self._stored_until: dict[Path, str] = {}
        self._stored_before: dict[Path, str] = {}  # until when others had stored it
        self._lock = threading.Lock()  # of how far it has read
        self._passed_on: list[LogLine] = []
        self._trusted: dict[str, float] = {}  # uid -> until when another reader is trusted to read it
        self._streams: dict[str, tuple[threading.Thread, float]] = {}  # uid -> what streams it, and since when
        self._wanted_until = 0.0  # streams
        self.ended = 0  # streams so far, of the other reader too

    def new_lines(self, pods: Iterable[Object], *, tail: int | None = None) -> list[LogLine]:
        """Return the lines that are new, in order of time; of a pod not read before all, or the last `tail`."""
        with self._lock:
            self.unanswered = False
            pods = list(pods)
            self._asked |= {pod["metadata"]["uid"]: _file(task_of(pod), pod["metadata"]["name"]) for pod in pods}
            asked = [pod for pod in pods if self._may_have_new_lines(pod)]
            read = [self._passed_on]
            self._passed_on = []
            if asked:
                with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(asked))) as pool:
                    read += pool.map(lambda pod: self._read(pod, tail), asked)
        return sorted((line for lines in read for line in lines), key=lambda line: line.time)

    def write(self, pod: Object, pieces: list[tuple[str, bytes]]) -> None:
        """Take over what another reader has read of a pod, all that was written since it read last."""
        self._queue(pod, pieces)
        self.trust(pod["metadata"]["uid"])

    def trust(self, uid: str) -> None:
        """Leave a pod to another reader for a while, which passes on what it reads."""
        self._trusted[uid] = time.monotonic() + _TRUSTED

    def _queue(self, pod: Object, pieces: list[tuple[str, bytes]]) -> None:
        with self._lock:
            self._passed_on += self._new(pod, pieces)

    def stream(self, pods: Iterable[Object]) -> None:
        """Have further lines of running pods that were read come by one open request per pod: `new_lines` returns them, and asks for none meanwhile.

        To be called again after each `new_lines`: a stream that ends is not opened again at once, and a pod without one is read as before.
        """
        now = time.monotonic()
        self._wanted_until = now + _ABANDONED
        for pod in pods:
            uid = pod["metadata"]["uid"]
            thread, since = self._streams.get(uid, (None, -_STREAM_INTERVAL))
            if thread and thread.is_alive():
                if self._sink is not None:
                    self._sink.trust(uid)
            elif now >= since + _STREAM_INTERVAL and self._may_stream(pod) and sum(map(self._is_streamed, self._streams)) < _TO_THE_END:
                thread = threading.Thread(target=self._stream, args=(pod,), name="log stream", daemon=True)
                self._streams[uid] = thread, now
                thread.start()

    def _may_stream(self, pod: Object) -> bool:
        uid = pod["metadata"]["uid"]
        return uid in self._read_once and uid not in self._muted and "running" in _states(pod) and self._may_have_new_lines(pod)

    def _is_streamed(self, uid: str) -> bool:
        return uid in self._streams and self._streams[uid][0].is_alive()

    def _wants(self, uid: str) -> bool:
        """Return whether a caller takes the lines of a stream, and no other reader passes them on."""
        now = time.monotonic()
        return now < self._wanted_until and len(self._passed_on) < _MAX_UNTAKEN and self._trusted.get(uid, 0.0) < now

    def _stream(self, pod: Object) -> None:
        """Take in what a pod writes until the stream ends, and count that: most often its container has ended."""
        self._read_stream(pod)
        for reader in filter(None, (self, self._sink)):
            reader.ended += 1

    def _read_stream(self, pod: Object) -> None:
        """Take in what a pod writes until it ends, or its node or the API server breaks off; one that is silent is asked for again."""
        uid = pod["metadata"]["uid"]
        while self._wants(uid):
            opened, size = time.monotonic(), 0
            try:
                with contextlib.closing(self._lines_to_come(pod)) as contents:
                    for content in contents:
                        size += len(content)
                        if size > _MAX_STREAM_SIZE or not self._wants(uid):
                            return
            except UnreachableError:
                if time.monotonic() < opened + _QUIET:
                    return
            except LauncherError:  # it is gone, or not to be read
                return
            else:
                return

    def _lines_to_come(self, pod: Object) -> Generator[bytes]:
        """Yield what a pod writes as it comes, once it is taken in; a gap that its node has left since it was read last is marked."""
        after, begins = self._after.get(pod["metadata"]["uid"], _FIRST), True
        for content in self._cluster.log_to_the_end(pod["metadata"]["name"], TRAINER, _since(after), timeout=_QUIET):
            pieces = list(_pieces(content))
            if begins:
                pieces = _marked(task_of(pod), pieces, after)
            begins = begins and not pieces
            if self._sink is not None:
                self._sink.write(pod, pieces)
            self._queue(pod, pieces)
            yield content

    @contextlib.contextmanager
    def to_the_end(self, pods: Iterable[Object]) -> Iterator[None]:
        """While this is entered, follow the first of pods that are being deleted to their last lines, which `new_lines` returns then.

        Polling would miss these lines: a pod is deleted moments after its container has ended.
        """
        over = threading.Event()
        followed = [pod for pod in pods if _has_written(pod) and not is_unresponsive(pod) and pod["metadata"]["uid"] not in self._done]
        threads = [
            threading.Thread(target=self._follow, args=(pod, over), name="last lines", daemon=True) for pod in followed[:_TO_THE_END]
        ]
        for thread in threads:
            thread.start()
        try:
            yield
            deadline = time.monotonic() + _ANSWER_TIMEOUT
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
        finally:
            over.set()

    def _follow(self, pod: Object, over: threading.Event) -> None:
        while not over.is_set():
            try:
                for _ in self._lines_to_come(pod):
                    pass
            except UnreachableError:
                pass  # it has written nothing for long, or its node does not answer
            except LauncherError:  # it is gone, or not to be read
                return
            over.wait(_RETRY_INTERVAL)  # a connection that ends need not be the container's end

    def skip_stored(self, pod: Object, directory: Path) -> None:
        """Take the lines stored of a pod for read."""
        uid, last = pod["metadata"]["uid"], _last_stamp(directory / _file(task_of(pod), pod["metadata"]["name"]))
        with self._lock:
            if last > self._after.get(uid, _FIRST):
                self._after[uid] = last

    def discarded(self, pod: Object, directory: Path) -> list[LogLine]:
        """Return the lines that others have stored of a pod from before the first line read: its node has discarded them since. A gap between is marked."""
        task, first = task_of(pod), self._first.get(pod["metadata"]["uid"], _FIRST)
        path = directory / _file(task, pod["metadata"]["name"])
        until = self._stored_before.get(path, _FIRST)
        if until == _FIRST or not path.is_file():
            return []
        pieces = [piece for piece in _pieces(path.read_bytes()) if piece[0] < first]
        if pieces and until < first:
            pieces.append(_gap(task, until))
        return [line for piece in pieces if (line := _line(task, piece))]

    def left(self, directory: Path, there: Iterable[Object]) -> list[LogLine]:
        """Return in order of time the lines that another reader has stored of pods that were asked for here, after the last line read here.

        Pods that are `there` are left out, as all of them is read. A node may give the log of a pod that is being removed without its last lines.
        """
        known = {pod["metadata"]["uid"] for pod in there}
        with self._lock:
            files = {path: self._after.get(uid, _FIRST) for uid, path in self._asked.items() if uid not in known}
        lines = [line for path, after in files.items() if (directory / path).is_file() for line in _read_stored(directory / path, after)]
        return sorted(lines, key=lambda line: line.time)

    def unread(self, pod: Object) -> bool:
        """Return whether a pod's log could not be read when it was asked for last, or is not asked for."""
        return pod["metadata"]["uid"] in self._muted or is_unresponsive(pod)

    def _may_have_new_lines(self, pod: Object) -> bool:
        uid = pod["metadata"]["uid"]
        if is_unresponsive(pod):  # to ask its node would take until the question times out
            return False
        if not _has_written(pod) or uid in self._done:
            return False
        now = time.monotonic()
        # Every reader that sees a pod end, or be deleted, reads its last lines itself.
        comes = self._trusted.get(uid, 0.0) > now or self._is_streamed(uid)
        trusts = comes and not _is_over(pod) and not pod["metadata"].get("deletionTimestamp")
        return not trusts and self._muted.get(uid, (0.0, 0.0))[0] <= now

    def _read(self, pod: Object, tail: int | None) -> list[LogLine]:
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        after = self._after.get(uid, _FIRST)
        query = _since(after)
        if after == _FIRST and tail is not None:
            query.append(("tailLines", str(tail)))
        try:
            content = self._cluster.log(name, TRAINER, query, timeout=_ANSWER_TIMEOUT)
        except LauncherError:  # it is gone, or its node does not answer
            pause = min(2 * self._muted[uid][1], _MUTED[1]) if uid in self._muted else _MUTED[0]
            self._muted[uid] = (time.monotonic() + pause, pause)
            self.unanswered = True
            return []
        self._muted.pop(uid, None)
        self._read_once.add(uid)
        pieces = _marked(task_of(pod), list(_pieces(content)), after)
        if self._sink is not None:
            self._sink.write(pod, pieces)
        if _is_over(pod):
            self._done.add(uid)
        return self._new(pod, pieces)

    def _new(self, pod: Object, pieces: list[tuple[str, bytes]]) -> list[LogLine]:
        """Return the lines of a pod that are new, and store them."""
        uid, task = pod["metadata"]["uid"], task_of(pod)
        after = self._after.get(uid, _FIRST)
        reports, (_, gap) = has_trainer(pod), _gap(task, _FIRST)
        new = [(stamp, text if reports or text == gap else escaped(text)) for stamp, text in pieces if stamp > after]
        if new:
            self._first.setdefault(uid, new[0][0])
            self._after[uid] = new[-1][0]
            self._store(task, pod["metadata"]["name"], new)
        return [line for piece in new if (line := _line(task, piece))]

    def _store(self, task: str, pod: str, pieces: list[tuple[str, bytes]]) -> None:
        if self._directory is None:
            return
        path = self._directory / _file(task, pod)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            until = self._stored_until.get(path) or _last_stamp(path)
            self._stored_before.setdefault(path, until)
            with path.open("ab") as file:
                file.writelines(b"%s %s\n" % (stamp.encode(), text) for stamp, text in pieces if stamp > until)
            self._stored_until[path] = max(until, pieces[-1][0])
        except OSError:  # a full disk must not end a run that is elsewhere; the cluster still has the lines
            self._directory = None


def stored_lines(directory: Path, there: Iterable[Object], tasks: list[str]) -> Iterator[LogLine]:
    """Yield the lines stored of pods that are not `there` any more, of `tasks` (all when empty)."""
    known = {pod["metadata"]["name"] for pod in there}
    for path in sorted(directory.glob("*/*.log")):
        task = path.parent.name
        if path.stem in known or (tasks and task not in tasks):
            continue
        yield from _read_stored(path, _FIRST)


def store_last(directory: Path, task: str, pod: str, lines: Iterable[str]) -> None:
    """Store the last lines of a pod that is gone, each behind its stamp, as another process has kept them; do nothing if lines of it are stored here."""
    path = directory / _file(task, pod)
    if path.exists():
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def stored_tasks(directory: Path) -> list[str]:
    """Return the tasks of which lines are stored."""
    return sorted({path.parent.name for path in directory.glob("*/*.log")})


def _file(task: str, pod: str) -> Path:
    return Path(task, f"{pod}.log")


def _read_stored(path: Path, after: str) -> Iterator[LogLine]:
    """Yield the lines stored of a pod, after a stamp."""
    for stamp, text in _pieces(path.read_bytes()):
        if stamp > after:  # two launchers that followed the run at once have both stored the line
            after = stamp
            if line := _line(path.parent.name, (stamp, text)):
                yield line


def _last_stamp(path: Path) -> str:
    """Return the greatest stamp that was stored earlier, one before all others where there is none."""
    return max((stamp for stamp, _ in _pieces(path.read_bytes())), default=_FIRST) if path.is_file() else _FIRST


def has_trainer(pod: Object) -> bool:
    """Return whether events are to be expected of a pod: not of one that runs the entrypoint of its image, without a `command`."""
    containers = pod.get("spec", {}).get("containers") or ()
    return all(role_rules.has_trainer(one.get("command") or ()) for one in containers if one.get("name") == TRAINER)


def _is_over(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}


def _has_written(pod: Object) -> bool:
    return bool(_states(pod) & {"running", "terminated"})


def _states(pod: Object) -> set[str]:
    return {state for one in pod.get("status", {}).get("containerStatuses") or () for state in one.get("state", {})}


def _pieces(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the stamp and the text of each line."""
    for raw in content.split(b"\n"):
        stamp, _, text = raw.partition(b" ")
        if stamp[:4].isdigit():
            yield stamp.decode("utf-8", "replace"), text


def _since(after: str) -> list[tuple[str, str]]:
    """Return the query for the lines from the second on in which the last line read, of this stamp, was written."""
    query = [("timestamps", "true")]
    if after != _FIRST:
        query.append(("sinceTime", f"{after[:19]}Z" if after.endswith("Z") else after))
    return query


def _marked(task: str, pieces: list[tuple[str, bytes]], after: str) -> list[tuple[str, bytes]]:
    """Return lines with a mark before them where the last line read, of the stamp `after`, is not the first of them: its node has discarded it."""
    return [_gap(task, after), *pieces] if pieces and _FIRST < after < pieces[0][0] else pieces


def _gap(task: str, after: str) -> tuple[str, bytes]:
    """Return a line of a task that says that lines are missing there, a nanosecond after the stamp `after`."""
    second, _, rest = after.partition(".")
    stamp = f"{second}.{int(rest.rstrip('Z').ljust(9, '0')) + 1:09}Z" if rest.endswith("Z") else after
    return stamp, json.dumps({"event": "notice", "task": task, "message": _MISSING}).encode()


def _line(task: str, piece: tuple[str, bytes]) -> LogLine | None:
    time = timestamps.parse_rfc3339(piece[0])
    return None if time is None else log_line(time, task, piece[1])
