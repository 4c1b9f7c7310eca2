"""The output of pods is read once, and stored for the time after they are deleted. A fake server stands in for the API server."""

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from launcher.backend.kubernetes import attendant_annotations, log_lines, pod_logs
from launcher.backend.kubernetes.attendant_annotations import DeletedPod
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.errors import TransientError
from launcher.backend.kubernetes.pod_logs import PodLogs, stored_lines
from launcher.cli.output_lines import event_in, raw
from launcher.errors import LauncherError
from launcher.runs.status import LogLine
from tests.waiting import until
from trainer.events import parse

POD: dict[str, Any] = {
    "metadata": {"name": "digits-worker-1-abc", "uid": "7", "labels": {"app.kubernetes.io/component": "worker"}, "annotations": {
        "batch.kubernetes.io/job-completion-index": "1"}},
    "status": {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]},
}  # fmt: skip
NOT_READY = {"type": "Ready", "status": "False", "reason": "NodeNotReady"}
SILENT_POD = {**POD, "status": {**POD["status"], "conditions": [NOT_READY]}}


class LogServer:
    """Returns the log of a pod as the API does: all of it from a second on."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.requests: list[dict[str, str]] = []
        self.is_deleted = False
        self.attendant: dict[str, Any] | None = None
        self.stream: queue.Queue[bytes | Exception | None] = queue.Queue()

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return the Job of the attendant, if there is one."""
        assert (kind, name) == ("Job", "digits-attendant")
        return self.attendant

    def follow_log(self, pod: str, container: str, query: list[tuple[str, str]], *, timeout: float) -> Iterator[bytes]:
        """Yield the pieces that are put into `stream`, up to a None."""
        assert (pod, container) == ("digits-worker-1-abc", "trainer")
        assert timeout > 0
        self.requests.append(dict(query))
        while (piece := self.stream.get()) is not None:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    def log(self, pod: str, container: str, query: list[tuple[str, str]], *, timeout: float) -> bytes:
        """Return the lines."""
        assert (pod, container) == ("digits-worker-1-abc", "trainer")
        assert timeout > 0
        self.requests.append(dict(query))
        if self.is_deleted:
            raise LauncherError("the pod is deleted")
        since, tail = dict(query).get("sinceTime", ""), int(dict(query).get("tailLines", len(self.lines)))
        lines = [line for line in self.lines if line[:19] >= since[:19]]
        return "".join(f"{line}\n" for line in lines[max(0, len(lines) - tail) :]).encode()


def reader(server: LogServer, directory: Path | None = None) -> PodLogs:
    return PodLogs(cast("Cluster", server), directory)


def test_only_new_lines_are_requested_and_returned() -> None:
    server = LogServer()
    logs = reader(server)
    server.lines = ["2026-01-01T00:00:01.100000000Z one", "2026-01-01T00:00:01.200000000Z two"]
    assert [(line.task, line.text) for line in logs.new_lines([POD])] == [("worker-1", "one"), ("worker-1", "two")]
    server.lines.append("2026-01-01T00:00:01.300000000Z three  with spaces")
    assert [line.text for line in logs.new_lines([POD])] == ["three  with spaces"]
    assert logs.new_lines([POD]) == []
    assert server.requests[-1]["sinceTime"] == "2026-01-01T00:00:01Z"


def test_no_log_is_requested_from_a_node_until_it_answers() -> None:
    server = LogServer()
    logs = reader(server)
    server.lines = ["2026-01-01T00:00:01.100000000Z one"]
    assert logs.new_lines([SILENT_POD]) == []
    assert (server.requests, logs.is_unread(SILENT_POD)) == ([], True)
    assert [line.text for line in logs.new_lines([POD])] == ["one"]
    assert not logs.is_unread(POD)


def test_lines_of_a_deleted_pod_are_stored_once(tmp_path: Path) -> None:
    server = LogServer()
    server.lines = ["2026-01-01T00:00:01.100000000Z one"]
    first = reader(server, tmp_path)
    first.new_lines([POD])
    server.lines.append("2026-01-01T00:00:02.000000000Z two")
    first.new_lines([POD])
    reader(server, tmp_path).new_lines([POD])  # another process follows it too
    assert [(line.task, line.text) for line in stored_lines(tmp_path, [])] == [("worker-1", "one"), ("worker-1", "two")]
    assert list(stored_lines(tmp_path, [], except_pods=[POD])) == []
    assert list(stored_lines(tmp_path, ["chief"])) == []


ODD = b'\x00\xff 10 %\r{"event":"failed"}'


def test_bytes_are_stored_unchanged_and_only_a_trainer_writes_events(tmp_path: Path) -> None:
    server = LogServer()
    event = '{"event":"started","attempt":1}'
    server.lines = [f"2026-01-01T00:00:01.100000000Z {event}", "2026-01-01T00:00:02.100000000Z odd"]
    logs = reader(server, tmp_path)
    original = server.log

    def log(pod: str, container: str, query: list[tuple[str, str]], *, timeout: float) -> bytes:
        return original(pod, container, query, timeout=timeout).replace(b"odd", ODD)

    server.log = log  # type: ignore[method-assign]
    without_trainer = {**POD, "spec": {"containers": [{"name": "trainer", "command": ["python", "train.py"]}]}}
    for lines in (logs.new_lines([without_trainer]), list(stored_lines(tmp_path, []))):
        assert [event_in(line.text) for line in lines] == [None, None]
        assert [raw(line) for line in lines] == [event.encode(), ODD]
    supervised = {**POD, "spec": {"containers": [{"name": "trainer", "command": ["python", "-P", "-m", "trainer", "--", "x"]}]}}
    assert [parse(line.text) is None for line in reader(server).new_lines([supervised])] == [False, True]


def test_a_log_that_cannot_be_read_is_not_requested_again_at_once() -> None:
    server = LogServer()
    server.is_deleted = True
    logs = reader(server)
    assert (logs.new_lines([POD]), logs.new_lines([POD])) == ([], [])
    assert len(server.requests) == 1
    assert logs.is_unread(POD)


def test_no_log_is_requested_of_a_container_that_has_not_started() -> None:
    server = LogServer()
    waiting = {**POD, "status": {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {}}}]}}
    assert reader(server).new_lines([waiting]) == []
    assert server.requests == []


def test_lines_that_one_reader_has_read_are_passed_to_another() -> None:
    server = LogServer()
    other = reader(server)
    server.lines = ["2026-01-01T00:00:01.100000000Z one"]
    assert [line.text for line in other.new_lines([POD])] == ["one"]
    server.lines.append("2026-01-01T00:00:02.100000000Z two")
    logs = PodLogs(cast("Cluster", server), sink=other)
    assert [line.text for line in logs.new_lines([POD])] == ["one", "two"]
    count = len(server.requests)
    assert [line.text for line in other.new_lines([POD])] == ["two"]
    assert (other.new_lines([POD]), len(server.requests)) == ([], count)
    server.lines.append("2026-01-01T00:00:03.000000000Z before it goes")
    terminating = {**POD, "metadata": {**POD["metadata"], "deletionTimestamp": "2026-01-01T00:00:03Z"}}
    assert [line.text for line in other.new_lines([terminating])] == ["before it goes"]
    assert [line.text for line in logs.new_lines([POD])] == ["before it goes"]
    server.lines.append("2026-01-01T00:00:03.100000000Z three")
    ended = {**POD, "status": {**POD["status"], "phase": "Succeeded"}}
    assert [line.text for line in other.new_lines([ended])] == ["three"]  # a reader that sees the pod's end reads its last lines
    assert [line.text for line in logs.new_lines([ended])] == ["three"]
    assert other.new_lines([ended]) == []


def test_a_reader_that_gets_no_more_lines_from_another_requests_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_logs, "_READ_ELSEWHERE_TIME", 0.0)
    server = LogServer()
    other = reader(server)
    logs = PodLogs(cast("Cluster", server), sink=other)
    server.lines = ["2026-01-01T00:00:01.100000000Z one"]
    logs.new_lines([POD])
    server.lines.append("2026-01-01T00:00:02.100000000Z two")
    assert [line.text for line in other.new_lines([POD])] == ["one", "two"]
    assert [line.text for line in logs.new_lines([POD])] == ["two"]
    assert other.new_lines([POD]) == []


def test_the_last_lines_are_read_without_polling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_logs, "_RETRY_INTERVAL", 0.0)
    server = LogServer()
    server.lines = ["2026-01-01T00:00:01.100000000Z one"]
    logs = reader(server, tmp_path)
    logs.new_lines([POD])
    with logs.following([POD]):
        server.stream.put(b"2026-01-01T00:00:01.100000000Z one\n2026-01-01T00:00:02.100000000Z two\n")
        server.stream.put(TransientError("it was silent for long"))
        server.stream.put(b"2026-01-01T00:00:02.100000000Z two\n2026-01-01T00:00:03.100000000Z saved")
        server.stream.put(None)
        server.stream.put(LauncherError("the pod is deleted"))
    assert [line.text for line in logs.new_lines(())] == ["two", "saved"]
    assert [one["sinceTime"] for one in server.requests[1:]] == ["2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z", "2026-01-01T00:00:03Z"]
    assert [line.text for line in stored_lines(tmp_path, [])] == ["one", "two", "saved"]


def streamed(logs: PodLogs, pods: list[dict[str, Any]]) -> list[str]:
    """Return the next lines of pods that are streamed."""
    lines = until("lines that are streamed", lambda: logs.new_lines(pods), seen=lambda: "none")
    return [line.text for line in lines]


def test_the_log_of_a_pod_that_is_streamed_is_not_requested() -> None:
    server = LogServer()
    other = reader(server)
    logs = PodLogs(cast("Cluster", server), sink=other)
    logs.stream([POD])
    assert server.requests == []  # its earlier lines are read first
    server.lines = ["2026-01-01T00:00:01.100000000Z one"]
    assert [line.text for line in logs.new_lines([POD])] == ["one"]
    logs.stream([POD])
    server.stream.put(b"2026-01-01T00:00:01.100000000Z one\n2026-01-01T00:00:02.100000000Z two")
    assert streamed(logs, [POD]) == ["two"]
    server.stream.put(b"2026-01-01T00:00:03.100000000Z three")
    assert streamed(logs, [POD]) == ["three"]
    logs.stream([POD])
    assert [[line.text for line in other.new_lines([POD])], len(server.requests)] == [["one", "two", "three"], 2]
    server.stream.put(None)  # the API server breaks off
    server.lines.append("2026-01-01T00:00:04.100000000Z four")
    server.lines[0] = "2026-01-01T00:00:03.100000000Z three"
    assert streamed(logs, [POD]) == ["four"]
    logs.stream([POD])
    assert len(server.requests) == 3  # no second stream at once
    assert (logs.ended_streams, other.ended_streams) == (1, 1)


def test_lines_that_a_node_has_discarded_before_a_stream_are_marked_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    server = LogServer()
    logs = reader(server)
    server.lines = [stamped(1)]
    logs.new_lines([POD])
    logs.stream([POD])
    server.stream.put("\n".join(map(stamped, (5, 6))).encode())
    marker, *others = streamed(logs, [POD])
    assert "lines may be missing here" in marker
    assert others == ["line 5", "line 6"]
    monkeypatch.setattr(pod_logs, "_MAX_WAITING_LINES", 1)  # the stream does not wait for a slow reader
    server.stream.put("\n".join(map(stamped, (7, 8))).encode())
    server.stream.put(stamped(9).encode())
    server.lines = list(map(stamped, (8, 9)))
    texts: list[str] = []
    while len(texts) < 3:
        texts += streamed(logs, [POD])
    assert texts == ["line 7", "line 8", "line 9"]


@pytest.mark.parametrize("phase", ["Running", "Failed"])  # a node returns all that it has left of a pod that it removes
def test_lines_of_a_deleted_pod_that_another_process_has_stored_are_shown_at_the_end(
    phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_lines, "_POLL_INTERVAL", 0.0)
    server = LogServer()
    server.lines = ["2026-01-01T00:00:01.100000000Z one"]
    pods = [{**POD, "status": {**POD["status"], "phase": phase}}]
    ends = iter([False, True])

    def has_ended() -> bool:
        ended = next(ends)
        if ended:
            server.lines.append("2026-01-01T00:00:02.100000000Z two")
            reader(server, tmp_path).new_lines([POD])
            pods.clear()
        return ended

    shown = log_lines.follow(cast("Cluster", server), "digits", tmp_path, log_lines.LogSelection(), lambda: list(pods), has_ended)
    assert [(line.task, line.text) for line in shown] == [("worker-1", "one"), ("worker-1", "two")]


@pytest.mark.parametrize("tail, texts", [(0, ["new"]), (1, ["second", "new"]), (None, ["first", "second", "new"])])
def test_a_log_is_followed_from_its_last_lines_on(
    tail: int | None, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_lines, "_POLL_INTERVAL", 0.0)
    server = LogServer()
    server.stream.put(None)
    server.lines = ["2026-01-01T00:00:01.100000000Z first", "2026-01-01T00:00:02.100000000Z second"]
    ends = iter([False, True])

    def has_ended() -> bool:
        ended = next(ends)
        server.lines += ["2026-01-01T00:00:03.100000000Z new"] if ended else []
        return ended

    selection = log_lines.LogSelection(tail=tail)
    pods = [{**POD, "status": {**POD["status"], "phase": "Failed"}}]
    running = iter([[POD], pods])
    shown = log_lines.follow(cast("Cluster", server), "digits", tmp_path, selection, lambda: next(running), has_ended)
    assert [line.text for line in shown] == texts


def test_stored_lines_of_a_pod_that_could_not_be_read_are_not_shown_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = LogServer()
    server.lines = ["2026-01-01T00:00:01.100000000Z one"]
    reader(server, tmp_path).new_lines([POD])
    monkeypatch.setattr(log_lines, "_POLL_INTERVAL", 0.0)
    server.lines.append("2026-01-01T00:00:02.100000000Z two")
    snapshots = iter([[SILENT_POD], [POD]])
    ends = iter([False, True])
    shown = log_lines.follow(
        cast("Cluster", server), "digits", tmp_path, log_lines.LogSelection(), lambda: next(snapshots), lambda: next(ends)
    )
    assert [line.text for line in shown] == ["one", "two"]
    assert "0" not in {one.get("sinceTime") for one in server.requests}


def test_a_log_is_followed_by_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    class Answer:
        closed = False

        def stream(self) -> Iterator[bytes]:
            yield from (b"1 o", b"ne\n2 two\n3 thr", b"ee\n4 cut off he")

        def close(self) -> None:
            self.closed = True

    answer = Answer()
    cluster = Cluster.__new__(Cluster)
    cluster.namespace = "default"
    requests: list[dict[str, Any]] = []

    def request(*_: object, **options: Any) -> Answer:
        requests.append(options)
        return answer

    monkeypatch.setattr(cluster, "_send", request)
    pieces = list(cluster.follow_log("pod", "trainer", [("timestamps", "true")], timeout=5.0))
    assert pieces == [b"1 one\n2 two", b"3 three"]
    assert answer.closed
    assert ("follow", "true") in requests[0]["query_params"]


def stamped(number: int) -> str:
    return f"2026-01-01T00:00:{number:02}.100000000Z line {number}"


def test_a_gap_of_discarded_lines_is_marked_and_the_stored_lines_before_it_are_shown(tmp_path: Path) -> None:
    server = LogServer()
    follower = reader(server, tmp_path)
    server.lines = list(map(stamped, range(1, 4)))
    follower.new_lines([POD])
    server.lines = list(map(stamped, range(3, 6)))  # the last line that was read is still in the log
    assert [line.text for line in follower.new_lines([POD])] == ["line 4", "line 5"]
    server.lines = list(map(stamped, range(8, 10)))
    marker, *others = follower.new_lines([POD])
    event = event_in(marker.text)
    assert event is not None
    assert (event["event"], event["message"][:26]) == ("notice", "lines may be missing here:")
    assert [line.text for line in others] == ["line 8", "line 9"]

    server.lines = list(map(stamped, range(8, 11)))
    texts = [line.text for line in all_lines(server, tmp_path)]
    assert [text for text in texts if text.startswith("line")] == [f"line {number}" for number in (1, 2, 3, 4, 5, 8, 9, 10)]
    assert texts.count(marker.text) == 1  # as the follower has stored it
    server.lines = list(map(stamped, range(20, 22)))  # after the follower has stopped
    texts = [line.text for line in all_lines(server, tmp_path)]
    assert texts[-3:] == [marker.text, "line 20", "line 21"]
    assert texts.count("line 10") == 1


def all_lines(server: LogServer, directory: Path) -> list[LogLine]:
    selection = log_lines.LogSelection()
    logs = log_lines._reader(cast("Cluster", server), directory, selection)
    return selection.select(log_lines._lines_so_far([POD], logs, directory, selection))


def test_lines_of_deleted_pods_that_the_attendant_has_stored_are_shown_unless_more_are_stored_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = LogServer()
    last = DeletedPod("digits-worker-1-old", "worker-1", ("2026-01-01T00:00:01.1Z one", "2026-01-01T00:00:02.1Z two"))
    server.attendant = {"metadata": {"annotations": attendant_annotations.lines_annotation([last])}}
    monkeypatch.setattr("launcher.backend.kubernetes.status_reader.pods_of", lambda *_: [])

    def shown(directory: Path, **selection: Any) -> list[str]:
        return [line.text for line in log_lines.read(cast("Cluster", server), "digits", directory, log_lines.LogSelection(**selection))]

    assert shown(tmp_path / "here") == ["one", "two"]
    assert shown(tmp_path / "here", tail=1) == ["two"]
    assert shown(tmp_path / "here", tasks=("chief",)) == []
    (tmp_path / "more" / "worker-1").mkdir(parents=True)
    (tmp_path / "more" / "worker-1" / "digits-worker-1-old.log").write_text("2026-01-01T00:00:00.1Z zero\n2026-01-01T00:00:01.1Z one\n")
    assert shown(tmp_path / "more") == ["zero", "one"]
    server.attendant = None
    assert shown(tmp_path / "none") == []
