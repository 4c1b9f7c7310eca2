"""What pods wrote is read once, and kept for when they are gone. The API server is stood in for by its answers."""

from pathlib import Path
from typing import Any, cast

import pytest

from launcher.backend.kubernetes import podlogs
from launcher.backend.kubernetes.api import Cluster
from launcher.backend.kubernetes.podlogs import PodLogs, kept_lines
from launcher.errors import LauncherError

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
    assert [(line.task, line.text) for line in logs.news([POD])] == [("worker-1", "one"), ("worker-1", "two")]
    answers.lines.append("2026-01-01T00:00:01.300000000Z three  with spaces")
    assert [line.text for line in logs.news([POD])] == ["three  with spaces"]
    assert logs.news([POD]) == []
    assert answers.asked[-1]["sinceTime"] == "2026-01-01T00:00:01Z"


def test_a_node_that_does_not_answer_is_not_asked_until_it_does() -> None:
    answers = Answers()
    logs = reader(answers)
    answers.lines = ["2026-01-01T00:00:01.100000000Z one"]
    silent = {**POD, "status": {**POD["status"], "conditions": [{"type": "Ready", "status": "False", "reason": "NodeNotReady"}]}}
    assert logs.news([silent]) == []
    assert (answers.asked, logs.unread(silent)) == ([], True)
    assert [line.text for line in logs.news([POD])] == ["one"]
    assert not logs.unread(POD)


def test_lines_of_a_pod_that_is_gone_are_kept_once(tmp_path: Path) -> None:
    answers = Answers()
    answers.lines = ["2026-01-01T00:00:01.100000000Z one"]
    first = reader(answers, tmp_path)
    first.news([POD])
    answers.lines.append("2026-01-01T00:00:02.000000000Z two")
    first.news([POD])
    reader(answers, tmp_path).news([POD])  # another process follows it too
    assert [(line.task, line.text) for line in kept_lines(tmp_path, [], [])] == [("worker-1", "one"), ("worker-1", "two")]
    assert list(kept_lines(tmp_path, [POD], [])) == []
    assert list(kept_lines(tmp_path, [], ["chief"])) == []


def test_a_log_that_cannot_be_read_is_not_asked_for_at_once_again() -> None:
    answers = Answers()
    answers.gone = True
    logs = reader(answers)
    assert (logs.news([POD]), logs.news([POD])) == ([], [])
    assert len(answers.asked) == 1
    assert logs.unread(POD)


def test_a_container_that_has_not_started_is_not_asked() -> None:
    answers = Answers()
    waiting = {**POD, "status": {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {}}}]}}
    assert reader(answers).news([waiting]) == []
    assert answers.asked == []


def test_what_one_reader_has_read_another_need_not_ask_for() -> None:
    answers = Answers()
    other = reader(answers)
    answers.lines = ["2026-01-01T00:00:01.100000000Z one"]
    assert [line.text for line in other.news([POD])] == ["one"]
    answers.lines.append("2026-01-01T00:00:02.100000000Z two")
    logs = PodLogs(cast("Cluster", answers), onward=other)
    assert [line.text for line in logs.news([POD])] == ["one", "two"]
    asked = len(answers.asked)
    assert [line.text for line in other.news([POD])] == ["two"]
    assert (other.news([POD]), len(answers.asked)) == ([], asked)
    answers.lines.append("2026-01-01T00:00:03.000000000Z before it goes")
    going = {**POD, "metadata": {**POD["metadata"], "deletionTimestamp": "2026-01-01T00:00:03Z"}}
    assert [line.text for line in other.news([going])] == ["before it goes"]
    assert [line.text for line in logs.news([POD])] == ["before it goes"]
    answers.lines.append("2026-01-01T00:00:03.100000000Z three")
    over = {**POD, "status": {**POD["status"], "phase": "Succeeded"}}
    assert [line.text for line in other.news([over])] == ["three"]  # who sees its end knows its last lines
    assert [line.text for line in logs.news([over])] == ["three"]
    assert other.news([over]) == []


def test_who_is_passed_nothing_on_any_more_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(podlogs, "_TRUSTED", 0.0)
    answers = Answers()
    other = reader(answers)
    logs = PodLogs(cast("Cluster", answers), onward=other)
    answers.lines = ["2026-01-01T00:00:01.100000000Z one"]
    logs.news([POD])
    answers.lines.append("2026-01-01T00:00:02.100000000Z two")
    assert [line.text for line in other.news([POD])] == ["one", "two"]
    assert [line.text for line in logs.news([POD])] == ["two"]
    assert other.news([POD]) == []
