"""Messages about a run on Kubernetes: any number of watchers send each one once, as the cluster records those that were sent."""

import base64
import dataclasses
import json
from collections.abc import Callable
from typing import Any, cast

import pytest

from launcher.backend.kubernetes import admission, notifier
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.errors import ForbiddenError, TransientError
from launcher.backend.kubernetes.notifier import NOTIFIED_ANNOTATION, NoChannelError, Notifier
from launcher.errors import LauncherError
from launcher.notify import sender
from launcher.notify.delivery import Channel
from launcher.notify.message import STALL_GRACE
from launcher.runs.status import RunStatus, State, TaskStatus
from launcher.spec.models import ClusterSpec
from launcher.spec.notification import Webhook
from tests.waiting import until
from tests.webhook import Server, serving

FAILED = RunStatus("digits", "kubernetes", State.FAILED, "chief: boom", started=1.0, ended=2.0, step=7)


RECORD, ATTENDANT = ("ConfigMap", "digits-record"), ("Job", "digits-attendant")


class FakeCluster:
    """A namespace with the record of a run, its attendant's Job, or both. It refuses a change of an old version."""

    namespace = "n"

    def __init__(self, *carriers: tuple[str, str]) -> None:
        self.objects = {(kind, name): api_object(name) for kind, name in carriers or [RECORD]}
        self.time = 1000.0
        self.error: LauncherError | None = None
        self.conflicts = 0

    def description(self) -> str:
        return "namespace n"

    def now(self) -> float:
        return self.time

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        if self.error:
            raise self.error
        stored = self.objects.get((kind, name))
        return json.loads(json.dumps(stored)) if stored else None

    def patch(self, kind: str, name: str, patch: dict[str, Any]) -> None:
        if self.error:
            raise self.error
        metadata = self.objects[kind, name]["metadata"]
        if self.conflicts or patch["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
            self.conflicts -= 1
            metadata["resourceVersion"] += "'"
            raise ConflictError("another watcher has changed it")
        metadata["annotations"] |= patch["metadata"]["annotations"]
        metadata["resourceVersion"] += "'"


class ConflictError(LauncherError):
    """Another change came first."""


def api_object(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": "1", "annotations": {}}}


@pytest.fixture(autouse=True)
def _conflicts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "http_status", lambda error: 409 if isinstance(error, ConflictError) else None)


def new_watcher(cluster: FakeCluster, server: Server | None, seconds: float = 0.0) -> Notifier:
    def make() -> Channel:
        return Channel("webhook", url=server.address if server else "http://127.0.0.1:1", allow_http=True)

    return Notifier(cast("Cluster", cluster), "digits", seconds, lambda: {"webhook": make})


def send_until(watcher: Notifier, status: RunStatus, condition: Callable[[], object]) -> list[str]:
    lines: list[str] = []

    def send() -> object:
        if result := condition():
            return result
        lines.extend(watcher.send_due(status))
        return None

    until("what the watcher is to send", send, seen=lambda: lines)
    return lines


def entries(cluster: FakeCluster, carrier: tuple[str, str] = RECORD) -> list[dict[str, Any]]:
    return notifier.entries_of(cluster.objects[carrier])


@pytest.mark.parametrize("carriers", [[RECORD], [ATTENDANT], [RECORD, ATTENDANT]])
def test_an_end_is_sent_once_by_all_watchers_and_not_again_by_later_ones(carriers: list[tuple[str, str]]) -> None:
    cluster = FakeCluster(*carriers)
    with serving(200) as server:
        first, second = new_watcher(cluster, server, 60.0), new_watcher(cluster, server, 60.0)
        assert [*first.send_due(FAILED), *second.send_due(FAILED)] == []
        assert (first.busy, second.busy) == (True, True)  # the second waits for the outcome
        assert list(first.finish(FAILED)) == []
        if RECORD in carriers:
            cluster.objects.pop(ATTENDANT, None)  # by kubernetes.ttl
        third = new_watcher(cluster, server)
        assert list(third.finish(FAILED)) == []
        assert (first.busy, third.busy, len(server.received)) == (False, False, 1)
    assert server.received[0][2]["text"] == "digits has failed at step 7: chief: boom"
    [entry] = entries(cluster, carriers[0])
    assert (entry["key"], entry["state"]) == ("webhook ended 1", "sent")
    assert entry["words"].startswith("failed: sent by webhook at ")


@pytest.mark.parametrize("has_new_record", [True, False])
def test_a_late_outcome_of_an_earlier_start_does_not_silence_the_next_one(has_new_record: bool) -> None:
    cluster, next_one = FakeCluster(), dataclasses.replace(FAILED, started=3.0, ended=4.0)
    with serving(200) as server:
        earlier, later = new_watcher(cluster, None), new_watcher(cluster, server)
        assert list(earlier.send_due(FAILED)) == []
        if has_new_record:  # `up` replaces the record, `kubectl apply` does not
            cluster.objects[RECORD] = api_object("digits-record")
        assert list(earlier.finish(FAILED)) == ["failed: not sent by webhook: the webhook was not reached: Connection refused"]
        assert len(entries(cluster)) == (0 if has_new_record else 1)
        assert list(later.finish(next_one)) == []
        assert len(server.received) == 1


def test_a_message_of_a_watcher_that_has_ended_is_sent_by_another() -> None:
    cluster = FakeCluster()
    with serving(200) as server:
        first = new_watcher(cluster, None)
        assert list(first.send_due(FAILED)) == []
        until("the end of its sender", first._in_flight[0].sender.outcome, seen=lambda: entries(cluster))
        second = new_watcher(cluster, server)
        assert list(second.send_due(FAILED)) == []
        assert server.received == []
        cluster.time += 200
        second._next.clear()
        send_until(second, FAILED, lambda: server.received and not second.busy)
        assert len(server.received) == 1


def test_a_sender_ends_after_its_last_try_and_before_its_claim_expires() -> None:
    assert sender._COMMAND_TIMEOUT < sender._EXIT_AFTER < notifier._SENDER_MARGIN


def test_a_failure_is_reported_in_a_line_and_recorded() -> None:
    cluster = FakeCluster()
    watcher = new_watcher(cluster, None)
    lines = send_until(watcher, FAILED, lambda: entries(cluster) and not watcher.busy)
    assert lines == ["failed: not sent by webhook: the webhook was not reached: Connection refused"]
    assert [entry["state"] for entry in entries(cluster)] == ["failed"]
    assert list(new_watcher(cluster, None).finish(FAILED)) == []


def test_sending_is_tried_again_after_a_conflict_and_after_an_unreachable_cluster() -> None:
    cluster = FakeCluster()
    with serving(200) as server:
        watcher = new_watcher(cluster, server)
        cluster.conflicts = 1
        assert list(watcher.send_due(FAILED)) == []
        assert (server.received, watcher.busy) == ([], True)
        cluster.error = TransientError("it does not answer", "wait")
        watcher._next.clear()
        with pytest.raises(TransientError):
            list(watcher.send_due(FAILED))
        cluster.error = None
        send_until(watcher, FAILED, lambda: server.received and not watcher.busy)
        assert len(server.received) == 1


def test_without_the_right_to_record_it_no_message_is_sent_and_this_is_reported_once() -> None:
    cluster = FakeCluster()
    cluster.error = ForbiddenError("you may not patch configmaps", "have that allowed", "rule")
    watcher = new_watcher(cluster, None)
    assert list(watcher.send_due(FAILED)) == ["failed: not sent by webhook: you may not patch configmaps; have that allowed"]
    assert (list(watcher.send_due(FAILED)), watcher.busy) == ([], False)


def test_a_stall_is_sent_once() -> None:
    cluster = FakeCluster()
    stalled = TaskStatus("chief", State.RUNNING, "no progress since 1970-01-01T00:10:00Z: in its code", stalled="code", stalled_since=600.0)
    status = RunStatus("digits", "kubernetes", State.RUNNING, started=1.0, tasks=(stalled,))
    with serving(200) as server:
        watcher = new_watcher(cluster, server)
        assert list(watcher.send_due(status)) == []
        assert server.received == []
        cluster.time += STALL_GRACE
        send_until(watcher, status, lambda: entries(cluster) and entries(cluster)[0]["state"] == "sent")
        replacement = new_watcher(cluster, server)
        assert [*replacement.send_due(status), *watcher.send_due(status)] == []
        cluster.time += STALL_GRACE
        assert list(replacement.send_due(status)) == []
        assert (len(server.received), watcher.busy, replacement.busy) == (1, False, False)
        assert server.received[0][2]["event"] == "stalled"
        send_until(watcher, FAILED, lambda: len(server.received) == 2 and not watcher.busy)


@pytest.mark.parametrize(
    "data, message, remedy",
    [
        (None, "there is no Secret hook in namespace n", "kubectl create secret generic hook -n n --from-literal=url=URL"),
        (
            {"other": "eA=="},
            "there is no key url in the Secret hook in namespace n",
            """kubectl patch secret hook -n n --patch '{"stringData": {"url": "URL"}}'""",
        ),
    ],
)
def test_a_missing_secret_or_key_is_named_with_the_command_that_creates_it(data: dict[str, str] | None, message: str, remedy: str) -> None:
    cluster = FakeCluster()
    if data is not None:
        cluster.objects["Secret", "hook"] = {"data": data}
    with pytest.raises(NoChannelError) as caught:
        notifier.webhook_from_secret(cast("Cluster", cluster), Webhook(secret="hook"))  # noqa: S106  its name
    assert (caught.value.message, caught.value.remedy) == (message, remedy)
    values = {"version": 1, "name": "digits", "train": {"workload": "mnist_mlp"}, "notify": {"webhook": {"secret": "hook"}}}
    findings = list(admission.missing_webhook_url(cast("Cluster", cluster), ClusterSpec.model_validate(values)))
    assert findings == [(f"{message}, which has the URL of notify.webhook: no message is sent to it", f"create it: {remedy}")]
    cluster.error = ForbiddenError("you may not get secrets", "have that allowed", "rule")
    assert list(admission.missing_webhook_url(cast("Cluster", cluster), ClusterSpec.model_validate(values))) == []


def test_the_url_is_read_from_the_secret() -> None:
    cluster = FakeCluster()
    cluster.objects["Secret", "hook"] = {"data": {"url": base64.b64encode(b"https://example.com/x").decode()}}
    assert notifier.webhook_from_secret(cast("Cluster", cluster), Webhook(secret="hook")).url == "https://example.com/x"  # noqa: S106


@pytest.mark.parametrize("text", ["", "no JSON", "{}", '["x"]', '[{"key": "x"}]'])
def test_an_annotation_of_another_version_has_no_entries(text: str) -> None:
    assert notifier.entries_of({"metadata": {"annotations": {NOTIFIED_ANNOTATION: text}}}) == []
    assert notifier.entries_of(None) == []
