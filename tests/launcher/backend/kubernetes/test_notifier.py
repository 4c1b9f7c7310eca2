"""People are told once how a run on Kubernetes goes, by any number of watchers: what was sent is noted in the cluster."""

import base64
import dataclasses
import json
from collections.abc import Callable
from typing import Any, cast

import pytest

from launcher.backend.kubernetes import admission, notifier
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.errors import ForbiddenError, UnreachableError
from launcher.backend.kubernetes.notifier import NOTE, NoChannelError, Notifier
from launcher.errors import LauncherError
from launcher.notify.message import STALL_GRACE
from launcher.notify.outbox import Channel
from launcher.runs.status import RunStatus, State, TaskStatus
from launcher.spec.models import ClusterSpec
from launcher.spec.notification import Webhook
from tests.waiting import until
from tests.webhook import Server, serving

FAILED = RunStatus("digits", "kubernetes", State.FAILED, "chief: boom", started=1.0, ended=2.0, step=7)


RECORD, ATTENDANT = ("ConfigMap", "digits-record"), ("Job", "digits-attendant")


class There:
    """A namespace with the record of a run, its attendant's Job, or both: a change is refused that was overtaken."""

    namespace = "n"

    def __init__(self, *kept: tuple[str, str]) -> None:
        self.objects = {(kind, name): made(name) for kind, name in kept or [RECORD]}
        self.time = 1000.0
        self.fails: LauncherError | None = None
        self.overtaken = 0

    def description(self) -> str:
        return "namespace n"

    def now(self) -> float:
        return self.time

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        if self.fails:
            raise self.fails
        there = self.objects.get((kind, name))
        return json.loads(json.dumps(there)) if there else None

    def patch(self, kind: str, name: str, patch: dict[str, Any]) -> None:
        if self.fails:
            raise self.fails
        head = self.objects[kind, name]["metadata"]
        if self.overtaken or patch["metadata"]["resourceVersion"] != head["resourceVersion"]:
            self.overtaken -= 1
            head["resourceVersion"] += "'"
            raise ConflictError("somebody has changed it")
        head["annotations"] |= patch["metadata"]["annotations"]
        head["resourceVersion"] += "'"


class ConflictError(LauncherError):
    """Somebody else's change has overtaken this one."""


def made(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": "1", "annotations": {}}}


@pytest.fixture(autouse=True)
def _conflicts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "status_of", lambda error: 409 if isinstance(error, ConflictError) else None)


def watching(there: There, server: Server | None, seconds: float = 0.0) -> Notifier:
    def make() -> Channel:
        return Channel("webhook", url=server.address if server else "http://127.0.0.1:1", allow_http=True)

    return Notifier(cast("Cluster", there), "digits", seconds, lambda: {"webhook": make})


def look_until(one: Notifier, status: RunStatus, condition: Callable[[], object]) -> list[str]:
    said: list[str] = []

    def looked() -> object:
        if found := condition():
            return found
        said.extend(one.send_due(status))
        return None

    until("what it is to send", looked, seen=lambda: said)
    return said


def entries(there: There, kept: tuple[str, str] = RECORD) -> list[dict[str, Any]]:
    return notifier.entries_of(there.objects[kept])


@pytest.mark.parametrize("kept", [[RECORD], [ATTENDANT], [RECORD, ATTENDANT]])
def test_an_end_is_told_once_by_all_who_watch_and_by_those_who_come_later(kept: list[tuple[str, str]]) -> None:
    there = There(*kept)
    with serving(200) as server:
        first, second = watching(there, server, 60.0), watching(there, server, 60.0)
        assert [*first.send_due(FAILED), *second.send_due(FAILED)] == []
        assert (first.busy, second.busy) == (True, True)  # the second waits for what becomes of it
        assert list(first.finish(FAILED)) == []
        if RECORD in kept:
            there.objects.pop(ATTENDANT, None)  # by kubernetes.ttl
        third = watching(there, server)
        assert list(third.finish(FAILED)) == []
        assert (first.busy, third.busy, len(server.received)) == (False, False, 1)
    assert server.received[0][2]["text"] == "digits has failed at step 7: chief: boom"
    [entry] = entries(there, kept[0])
    assert (entry["key"], entry["state"]) == ("webhook ended 1", "sent")
    assert entry["words"].startswith("failed: sent by webhook at ")


@pytest.mark.parametrize("is_anew", [True, False])
def test_a_late_outcome_of_an_earlier_start_does_not_silence_the_next_one(is_anew: bool) -> None:
    there, next_one = There(), dataclasses.replace(FAILED, started=3.0, ended=4.0)
    with serving(200) as server:
        earlier, later = watching(there, None), watching(there, server)
        assert list(earlier.send_due(FAILED)) == []
        if is_anew:  # by `up`; who applies the objects of a run leaves the record
            there.objects[RECORD] = made("digits-record")
        assert list(earlier.finish(FAILED)) == ["failed: not sent by webhook: the webhook was not reached: Connection refused"]
        assert len(entries(there)) == (0 if is_anew else 1)
        assert list(later.finish(next_one)) == []
        assert len(server.received) == 1


def test_one_that_was_to_be_sent_by_somebody_who_is_gone_is_sent_by_another() -> None:
    there = There()
    with serving(200) as server:
        gone = watching(there, None)
        assert list(gone.send_due(FAILED)) == []
        until("the end of its sender", gone._sent[0].sending.outcome, seen=lambda: entries(there))
        other = watching(there, server)
        assert list(other.send_due(FAILED)) == []
        assert server.received == []
        there.time += 200
        other._next.clear()
        look_until(other, FAILED, lambda: server.received and not other.busy)
        assert len(server.received) == 1


def test_what_fails_is_said_in_a_line_and_noted() -> None:
    there = There()
    one = watching(there, None)
    said = look_until(one, FAILED, lambda: entries(there) and not one.busy)
    assert said == ["failed: not sent by webhook: the webhook was not reached: Connection refused"]
    assert [entry["state"] for entry in entries(there)] == ["failed"]
    assert list(watching(there, None).finish(FAILED)) == []


def test_a_change_of_somebody_else_s_and_a_cluster_that_is_away_are_got_over() -> None:
    there = There()
    with serving(200) as server:
        one = watching(there, server)
        there.overtaken = 1
        assert list(one.send_due(FAILED)) == []
        assert (server.received, one.busy) == ([], True)
        there.fails = UnreachableError("it does not answer", "wait")
        one._next.clear()
        with pytest.raises(UnreachableError):
            list(one.send_due(FAILED))
        there.fails = None
        look_until(one, FAILED, lambda: server.received and not one.busy)
        assert len(server.received) == 1


def test_without_the_right_to_note_it_nobody_is_told_and_that_is_said_once() -> None:
    there = There()
    there.fails = ForbiddenError("you may not patch configmaps", "have that allowed", "rule")
    one = watching(there, None)
    assert list(one.send_due(FAILED)) == ["failed: not sent by webhook: you may not patch configmaps; have that allowed"]
    assert (list(one.send_due(FAILED)), one.busy) == ([], False)


def test_a_stall_is_told_once() -> None:
    there = There()
    stalled = TaskStatus("chief", State.RUNNING, "no progress since 1970-01-01T00:10:00Z: in its code", stalled="code", stalled_since=600.0)
    status = RunStatus("digits", "kubernetes", State.RUNNING, started=1.0, tasks=(stalled,))
    with serving(200) as server:
        one = watching(there, server)
        assert list(one.send_due(status)) == []
        assert server.received == []
        there.time += STALL_GRACE
        look_until(one, status, lambda: entries(there) and entries(there)[0]["state"] == "sent")
        replaced = watching(there, server)
        assert [*replaced.send_due(status), *one.send_due(status)] == []
        there.time += STALL_GRACE
        assert list(replaced.send_due(status)) == []
        assert (len(server.received), one.busy, replaced.busy) == (1, False, False)
        assert server.received[0][2]["event"] == "stalled"
        look_until(one, FAILED, lambda: len(server.received) == 2 and not one.busy)


@pytest.mark.parametrize(
    "data, words, remedy",
    [
        (None, "there is no Secret hook in namespace n", "kubectl create secret generic hook -n n --from-literal=url=URL"),
        (
            {"other": "eA=="},
            "there is no key url in the Secret hook in namespace n",
            """kubectl patch secret hook -n n --patch '{"stringData": {"url": "URL"}}'""",
        ),
    ],
)
def test_a_secret_or_key_that_is_not_there_is_named_with_what_makes_it(data: dict[str, str] | None, words: str, remedy: str) -> None:
    there = There()
    if data is not None:
        there.objects["Secret", "hook"] = {"data": data}
    with pytest.raises(NoChannelError) as lacking:
        notifier.of_secret(cast("Cluster", there), Webhook(secret="hook"))  # noqa: S106  its name
    assert (lacking.value.message, lacking.value.remedy) == (words, remedy)
    values = {"version": 1, "name": "digits", "train": {"workload": "mnist_mlp"}, "notify": {"webhook": {"secret": "hook"}}}
    told = list(admission.missing_webhook_url(cast("Cluster", there), ClusterSpec.model_validate(values)))
    assert told == [(f"{words}, which has the URL of notify.webhook: no message is sent to it", f"create it: {remedy}")]
    there.fails = ForbiddenError("you may not get secrets", "have that allowed", "rule")
    assert list(admission.missing_webhook_url(cast("Cluster", there), ClusterSpec.model_validate(values))) == []


def test_the_url_is_read_from_the_secret() -> None:
    there = There()
    there.objects["Secret", "hook"] = {"data": {"url": base64.b64encode(b"https://example.com/x").decode()}}
    assert notifier.of_secret(cast("Cluster", there), Webhook(secret="hook")).url == "https://example.com/x"  # noqa: S106


@pytest.mark.parametrize("text", ["", "no JSON", "{}", '["x"]', '[{"key": "x"}]'])
def test_a_note_that_is_none_of_this_version_s_is_none(text: str) -> None:
    assert notifier.entries_of({"metadata": {"annotations": {NOTE: text}}}) == []
    assert notifier.entries_of(None) == []
