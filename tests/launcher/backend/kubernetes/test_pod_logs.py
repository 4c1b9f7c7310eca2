"""The output of pods is read once, and kept for when they are gone. The API server is stood in for by its answers."""

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from launcher.backend.kubernetes import attendant_notes, log_lines, pod_logs
from launcher.backend.kubernetes.attendant_notes import DeletedPod
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.errors import UnreachableError
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


class Answers:
    """Gives the log of a pod as the API does: all of it from a second on."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.asked: list[dict[str, str]] = []
        self.gone = False
        self.attendant: dict[str, Any] | None = None
        self.more: queue.Queue[bytes | Exception | None] = queue.Queue()

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return the Job of the attendant, where there is one."""
        assert (kind, name) == ("Job", "digits-attendant")
        return self.attendant

    def log_to_the_end(self, pod: str, container: str, query: list[tuple[str, str]], *, timeout: float) -> Iterator[bytes]:
        """Yield what is put into `more`, until it says that it has ended."""
        assert (pod, container) == ("digits-worker-1-abc", "trainer")
        assert timeout > 0
        self.asked.append(dict(query))
        while (piece := self.more.get()) is not None:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    def log(self, pod: str, container: str, query: list[tuple[str, str]], *, timeout: float) -> bytes:
        """Return the lines."""
        assert (pod, container) == ("digits-worker-1-abc", "trainer")
        assert timeout > 0
        self.asked.append(dict(query))
        if self.gone:
            raise LauncherError("gone")
        since = dict(query).get("sinceTime", "")
        return "".join(f"{line}\n" for line in self.lines if line[:19] >= since[:19]).encode()


def reader(answers: Answers, kept: Path | None = None) -> PodLogs:
    return PodLogs(cast("Cluster", answers), kept)


def test_only_new_lines_are_returned_and_asked_for() -> None:
    answers = Answers()
    logs = reader(answers)
    answers.lines = ["2026-01-01T00:00:01.100000000Z one", "2026-01-01T00:00:01.200000000Z two"]
    assert [(line.task, line.text) for line in logs.new_lines([POD])] == [("worker-1", "one"), ("worker-1", "two")]
    answers.lines.append("2026-01-01T00:00:01.300000000Z three  with spaces")
    assert [line.text for line in logs.new_lines([POD])] == ["three  with spaces"]
    assert logs.new_lines([POD]) == []
    assert answers.asked[-1]["sinceTime"] == "2026-01-01T00:00:01Z"


def test_a_node_that_does_not_answer_is_not_asked_until_it_does() -> None:
    answers = Answers()
    logs = reader(answers)
    answers.lines = ["2026-01-01T00:00:01.100000000Z one"]
    silent = {**POD, "status": {**POD["status"], "conditions": [{"type": "Ready", "status": "False", "reason": "NodeNotReady"}]}}
    assert logs.new_lines([silent]) == []
    assert (answers.asked, logs.is_unread(silent)) == ([], True)
    assert [line.text for line in logs.new_lines([POD])] == ["one"]
    assert not logs.is_unread(POD)


def test_lines_of_a_pod_that_is_gone_are_kept_once(tmp_path: Path) -> None:
    answers = Answers()
    answers.lines = ["2026-01-01T00:00:01.100000000Z one"]
    first = reader(answers, tmp_path)
    first.new_lines([POD])
    answers.lines.append("2026-01-01T00:00:02.000000000Z two")
    first.new_lines([POD])
    reader(answers, tmp_path).new_lines([POD])  # another process follows it too
    assert [(line.task, line.text) for line in stored_lines(tmp_path, [], [])] == [("worker-1", "one"), ("worker-1", "two")]
    assert list(stored_lines(tmp_path, [POD], [])) == []
    assert list(stored_lines(tmp_path, [], ["chief"])) == []


ODD = b'\x00\xff 10 %\r{"event":"failed"}'


def test_bytes_are_kept_as_they_are_and_only_a_trainer_tells_events(tmp_path: Path) -> None:
    answers = Answers()
    event = '{"event":"started","attempt":1}'
    answers.lines = [f"2026-01-01T00:00:01.100000000Z {event}", "2026-01-01T00:00:02.100000000Z odd"]
    logs = reader(answers, tmp_path)
    monkey = answers.log

    def log(pod: str, container: str, query: list[tuple[str, str]], *, timeout: float) -> bytes:
        return monkey(pod, container, query, timeout=timeout).replace(b"odd", ODD)

    answers.log = log  # type: ignore[method-assign]
    own = {**POD, "spec": {"containers": [{"name": "trainer", "command": ["python", "train.py"]}]}}
    for found in (logs.new_lines([own]), list(stored_lines(tmp_path, [], []))):
        assert [event_in(line.text) for line in found] == [None, None]
        assert [raw(line) for line in found] == [event.encode(), ODD]
    supervised = {**POD, "spec": {"containers": [{"name": "trainer", "command": ["python", "-P", "-m", "trainer", "--", "x"]}]}}
    assert [parse(line.text) is None for line in reader(answers).new_lines([supervised])] == [False, True]


def test_a_log_that_cannot_be_read_is_not_asked_for_at_once_again() -> None:
    answers = Answers()
    answers.gone = True
    logs = reader(answers)
    assert (logs.new_lines([POD]), logs.new_lines([POD])) == ([], [])
    assert len(answers.asked) == 1
    assert logs.is_unread(POD)


def test_a_container_that_has_not_started_is_not_asked() -> None:
    answers = Answers()
    waiting = {**POD, "status": {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {}}}]}}
    assert reader(answers).new_lines([waiting]) == []
    assert answers.asked == []


def test_what_one_reader_has_read_another_need_not_ask_for() -> None:
    answers = Answers()
    other = reader(answers)
    answers.lines = ["2026-01-01T00:00:01.100000000Z one"]
    assert [line.text for line in other.new_lines([POD])] == ["one"]
    answers.lines.append("2026-01-01T00:00:02.100000000Z two")
    logs = PodLogs(cast("Cluster", answers), sink=other)
    assert [line.text for line in logs.new_lines([POD])] == ["one", "two"]
    asked = len(answers.asked)
    assert [line.text for line in other.new_lines([POD])] == ["two"]
    assert (other.new_lines([POD]), len(answers.asked)) == ([], asked)
    answers.lines.append("2026-01-01T00:00:03.000000000Z before it goes")
    going = {**POD, "metadata": {**POD["metadata"], "deletionTimestamp": "2026-01-01T00:00:03Z"}}
    assert [line.text for line in other.new_lines([going])] == ["before it goes"]
    assert [line.text for line in logs.new_lines([POD])] == ["before it goes"]
    answers.lines.append("2026-01-01T00:00:03.100000000Z three")
    over = {**POD, "status": {**POD["status"], "phase": "Succeeded"}}
    assert [line.text for line in other.new_lines([over])] == ["three"]  # who sees its end knows its last lines
    assert [line.text for line in logs.new_lines([over])] == ["three"]
    assert other.new_lines([over]) == []


def test_who_is_passed_nothing_on_any_more_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_logs, "_TRUST_TIME", 0.0)
    answers = Answers()
    other = reader(answers)
    logs = PodLogs(cast("Cluster", answers), sink=other)
    answers.lines = ["2026-01-01T00:00:01.100000000Z one"]
    logs.new_lines([POD])
    answers.lines.append("2026-01-01T00:00:02.100000000Z two")
    assert [line.text for line in other.new_lines([POD])] == ["one", "two"]
    assert [line.text for line in logs.new_lines([POD])] == ["two"]
    assert other.new_lines([POD]) == []


def test_the_last_lines_are_read_without_looking_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_logs, "_RETRY_INTERVAL", 0.0)
    answers = Answers()
    answers.lines = ["2026-01-01T00:00:01.100000000Z one"]
    logs = reader(answers, tmp_path)
    logs.new_lines([POD])
    with logs.followed_to_the_end([POD]):
        answers.more.put(b"2026-01-01T00:00:01.100000000Z one\n2026-01-01T00:00:02.100000000Z two\n")
        answers.more.put(UnreachableError("it was silent for long"))
        answers.more.put(b"2026-01-01T00:00:02.100000000Z two\n2026-01-01T00:00:03.100000000Z saved")
        answers.more.put(None)
        answers.more.put(LauncherError("it is gone"))
    assert [line.text for line in logs.new_lines(())] == ["two", "saved"]
    assert [one["sinceTime"] for one in answers.asked[1:]] == ["2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z", "2026-01-01T00:00:03Z"]
    assert [line.text for line in stored_lines(tmp_path, [], [])] == ["one", "two", "saved"]


def taken(logs: PodLogs, pods: list[dict[str, Any]]) -> list[str]:
    """Return what comes next of pods that are streamed."""
    found = until("lines that are streamed", lambda: logs.new_lines(pods), seen=lambda: "none")
    return [line.text for line in found]


def test_a_pod_that_is_streamed_is_not_asked_for_its_log() -> None:
    answers = Answers()
    other = reader(answers)
    logs = PodLogs(cast("Cluster", answers), sink=other)
    logs.stream([POD])
    assert answers.asked == []  # what it wrote before is read first
    answers.lines = ["2026-01-01T00:00:01.100000000Z one"]
    assert [line.text for line in logs.new_lines([POD])] == ["one"]
    logs.stream([POD])
    answers.more.put(b"2026-01-01T00:00:01.100000000Z one\n2026-01-01T00:00:02.100000000Z two")
    assert taken(logs, [POD]) == ["two"]
    answers.more.put(b"2026-01-01T00:00:03.100000000Z three")
    assert taken(logs, [POD]) == ["three"]
    logs.stream([POD])
    assert [[line.text for line in other.new_lines([POD])], len(answers.asked)] == [["one", "two", "three"], 2]
    answers.more.put(None)  # the API server breaks off
    answers.lines.append("2026-01-01T00:00:04.100000000Z four")
    answers.lines[0] = "2026-01-01T00:00:03.100000000Z three"
    assert taken(logs, [POD]) == ["four"]
    logs.stream([POD])
    assert len(answers.asked) == 3  # nor at once again
    assert (logs.ended, other.ended) == (1, 1)


def test_lines_that_a_node_has_discarded_before_a_stream_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers()
    logs = reader(answers)
    answers.lines = [stamped(1)]
    logs.new_lines([POD])
    logs.stream([POD])
    answers.more.put("\n".join(map(stamped, (5, 6))).encode())
    marked, *more = taken(logs, [POD])
    assert "lines may be missing here" in marked
    assert more == ["line 5", "line 6"]
    monkeypatch.setattr(pod_logs, "_MAX_WAITING_LINES", 1)  # who does not take them is not waited for
    answers.more.put("\n".join(map(stamped, (7, 8))).encode())
    answers.more.put(stamped(9).encode())
    answers.lines = list(map(stamped, (8, 9)))
    words: list[str] = []
    while len(words) < 3:
        words += taken(logs, [POD])
    assert words == ["line 7", "line 8", "line 9"]


@pytest.mark.parametrize("phase", ["Running", "Failed"])  # a node gave all that it had of one that it was removing
def test_what_another_has_kept_of_a_pod_that_is_gone_is_shown_in_the_end(
    phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_lines, "_POLL_INTERVAL", 0.0)
    answers = Answers()
    answers.lines = ["2026-01-01T00:00:01.100000000Z one"]
    pods = [{**POD, "status": {**POD["status"], "phase": phase}}]
    told = iter([False, True])

    def over() -> bool:
        ended = next(told)
        if ended:
            answers.lines.append("2026-01-01T00:00:02.100000000Z two")
            reader(answers, tmp_path).new_lines([POD])
            pods.clear()
        return ended

    shown = log_lines.follow(cast("Cluster", answers), "digits", tmp_path, log_lines.LogSelection(), lambda: list(pods), over, 1.0)
    assert [(line.task, line.text) for line in shown] == [("worker-1", "one"), ("worker-1", "two")]


def test_what_was_kept_of_a_pod_that_could_not_be_read_is_not_shown_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers()
    answers.lines = ["2026-01-01T00:00:01.100000000Z one"]
    reader(answers, tmp_path).new_lines([POD])
    silent = {**POD, "status": {**POD["status"], "conditions": [{"type": "Ready", "status": "False", "reason": "NodeNotReady"}]}}
    monkeypatch.setattr(log_lines, "_POLL_INTERVAL", 0.0)
    answers.lines.append("2026-01-01T00:00:02.100000000Z two")
    looks = iter([[silent], [POD]])
    told = iter([False, True])
    shown = log_lines.follow(
        cast("Cluster", answers), "digits", tmp_path, log_lines.LogSelection(), lambda: next(looks), lambda: next(told), 1.0
    )
    assert [line.text for line in shown] == ["one", "two"]
    assert "0" not in {one.get("sinceTime") for one in answers.asked}


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
    asked: list[dict[str, Any]] = []

    def request(*_: object, **options: Any) -> Answer:
        asked.append(options)
        return answer

    monkeypatch.setattr(cluster, "_send", request)
    whole = list(cluster.log_to_the_end("pod", "trainer", [("timestamps", "true")], timeout=5.0))
    assert whole == [b"1 one\n2 two", b"3 three"]
    assert answer.closed
    assert ("follow", "true") in asked[0]["query_params"]


def stamped(number: int) -> str:
    return f"2026-01-01T00:00:{number:02}.100000000Z line {number}"


def test_a_gap_that_a_node_leaves_which_has_discarded_lines_is_marked_and_what_is_kept_from_before_is_shown(tmp_path: Path) -> None:
    answers = Answers()
    follower = reader(answers, tmp_path)
    answers.lines = list(map(stamped, range(1, 4)))
    follower.new_lines([POD])
    answers.lines = list(map(stamped, range(3, 6)))  # what was read last is still there
    assert [line.text for line in follower.new_lines([POD])] == ["line 4", "line 5"]
    answers.lines = list(map(stamped, range(8, 10)))
    marked, *more = follower.new_lines([POD])
    told = event_in(marked.text)
    assert told is not None
    assert (told["event"], told["message"][:26]) == ("notice", "lines may be missing here:")
    assert [line.text for line in more] == ["line 8", "line 9"]

    answers.lines = list(map(stamped, range(8, 11)))
    words = [line.text for line in all_of(answers, tmp_path)]
    assert [text for text in words if text.startswith("line")] == [f"line {number}" for number in (1, 2, 3, 4, 5, 8, 9, 10)]
    assert words.count(marked.text) == 1  # as the follower has kept it
    answers.lines = list(map(stamped, range(20, 22)))  # since it follows no more
    words = [line.text for line in all_of(answers, tmp_path)]
    assert words[-3:] == [marked.text, "line 20", "line 21"]
    assert words.count("line 10") == 1


def all_of(answers: Answers, kept: Path) -> list[LogLine]:
    chosen = log_lines.LogSelection()
    return chosen.select(log_lines._lines_so_far([POD], log_lines._reader(cast("Cluster", answers), kept, chosen), kept, chosen))


def test_what_the_attendant_has_kept_of_pods_that_are_gone_is_shown_unless_more_is_kept_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Answers()
    last = DeletedPod("digits-worker-1-old", "worker-1", ("2026-01-01T00:00:01.1Z one", "2026-01-01T00:00:02.1Z two"))
    answers.attendant = {"metadata": {"annotations": attendant_notes.lines_annotation([last])}}
    monkeypatch.setattr("launcher.backend.kubernetes.status_source.pods_of", lambda *_: [])

    def shown(kept: Path, **chosen: Any) -> list[str]:
        return [line.text for line in log_lines.read(cast("Cluster", answers), "digits", kept, log_lines.LogSelection(**chosen))]

    assert shown(tmp_path / "here") == ["one", "two"]
    assert shown(tmp_path / "here", tail=1) == ["two"]
    assert shown(tmp_path / "here", tasks=("chief",)) == []
    (tmp_path / "more" / "worker-1").mkdir(parents=True)
    (tmp_path / "more" / "worker-1" / "digits-worker-1-old.log").write_text("2026-01-01T00:00:00.1Z zero\n2026-01-01T00:00:01.1Z one\n")
    assert shown(tmp_path / "more") == ["zero", "one"]
    answers.attendant = None
    assert shown(tmp_path / "none") == []
