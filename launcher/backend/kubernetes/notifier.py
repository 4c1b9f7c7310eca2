"""Notifies people of a run on Kubernetes. Of any number of watchers one sends each message: an annotation of the record, or else of the attendant's Job, lists those sent."""

import base64
import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from launcher.backend.kubernetes import run_record
from launcher.backend.kubernetes.client import Cluster, Object, as_json, http_status
from launcher.backend.kubernetes.errors import ForbiddenError, TransientError
from launcher.backend.kubernetes.pod_status import annotation
from launcher.errors import LauncherError
from launcher.notify import ledger
from launcher.notify.delivery import Channel, SenderProcess
from launcher.notify.message import DueMessages, Message
from launcher.render.kubernetes.objects import ATTENDANT
from launcher.runs.status import RunStatus
from launcher.spec.notification import Webhook

NOTIFIED_ANNOTATION = "tf-launcher/notified"
_SENDER_MARGIN = 90.0  # seconds beyond its own time after which a sender counts as dead
_STALL_CHECK_INTERVAL = 60.0  # seconds between two checks whether to report a stall again
_RETRY_INTERVAL = 1.0  # seconds, after another watcher has changed the annotation
_POLL_INTERVAL = 0.1

# The channels by which people are notified, by kind: a function that opens one, or raises NoChannelError.
Channels = Mapping[str, Callable[[], Channel]]


class NoChannelError(LauncherError):
    """There is no channel by which to notify people: something that it needs is missing."""


@dataclasses.dataclass(frozen=True)
class _Delivery:
    """One message by one channel."""

    kind: str
    event: str
    stalled_tasks: tuple[str, ...]


@dataclasses.dataclass
class _InFlight:
    message: Message
    kind: str
    sender: SenderProcess
    outcome: ledger.Entry | None = None


class Notifier:
    """Sends the messages of one run, in one process that watches it."""

    def __init__(self, cluster: Cluster, run: str, seconds: float, channels: Callable[[], Channels]) -> None:
        """Try each message for `seconds`; `channels` is called when one is due."""
        self._cluster, self._run, self._seconds, self._channels = cluster, run, seconds, channels
        self._due = DueMessages()
        self._in_flight: list[_InFlight] = []
        self._next: dict[_Delivery, float] = {}  # when to retry, of time.monotonic

    @property
    def busy(self) -> bool:
        """Whether a message is being sent, or the one about the run's end is still to be sent, by this or another watcher."""
        return bool(self._in_flight) or any(at < math.inf for delivery, at in self._next.items() if not delivery.stalled_tasks)

    def send_due(self, status: RunStatus) -> Iterator[str]:
        """Send the messages that are due, and record the outcomes of earlier ones; yield failures. Raises LauncherError; may be called again then."""
        yield from self.record_outcomes()
        for message in self._due.check(status, self._cluster.now()):
            for kind, open_channel in self._channels().items():
                delivery = _Delivery(kind, message.event, message.stalled_tasks)
                if time.monotonic() >= self._next.setdefault(delivery, 0.0):
                    try:
                        wait = self._send(message, kind, open_channel)
                    except (NoChannelError, ForbiddenError) as error:
                        yield f"{message.event}: not sent by {kind}: {error.message}; {error.remedy}"
                        wait = math.inf
                    self._next[delivery] = time.monotonic() + (min(wait, _STALL_CHECK_INTERVAL) if message.stalled_tasks else wait)

    def record_outcomes(self) -> Iterator[str]:
        """Record the outcomes of messages that are being sent; yield failures. Raises LauncherError; may be called again then."""
        for in_flight in list(self._in_flight):
            in_flight.outcome = in_flight.outcome or in_flight.sender.outcome()
            if in_flight.outcome is not None and self._record(in_flight, in_flight.outcome):
                self._in_flight.remove(in_flight)
                if in_flight.outcome["state"] == ledger.FAILED:
                    yield str(in_flight.outcome["words"])

    def finish(self, status: RunStatus) -> Iterator[str]:
        """Wait for the messages that are being sent, until their time is up."""
        until, is_due_soon = time.monotonic() + self._seconds + _SENDER_MARGIN, True
        while (self._in_flight or is_due_soon) and time.monotonic() < until:
            with suppress(TransientError):  # retried
                yield from self.send_due(status)
                is_due_soon = any(at <= time.monotonic() + _RETRY_INTERVAL for at in self._next.values())
            time.sleep(_POLL_INTERVAL)

    def _send(self, message: Message, kind: str, open_channel: Callable[[], Channel]) -> float:
        """Send a message unless another watcher does; return the seconds until a retry, infinity for none."""
        annotated = self._annotated_object()
        if annotated is None:
            return math.inf  # the run is deleted
        now, entries = self._cluster.now(), entries_of(annotated[1])
        wait = ledger.wait_time(entries, message, kind, now)
        if wait != 0.0:
            return math.inf if wait is None else wait
        channel = open_channel()
        if not self._write(annotated, ledger.with_claim(entries, message, kind, now, self._seconds + _SENDER_MARGIN)):
            return _RETRY_INTERVAL
        try:
            self._in_flight.append(_InFlight(message, kind, SenderProcess(channel.request(message, self._seconds))))
        except OSError as error:
            raise NoChannelError(
                f"the process that sends it cannot be started ({error.strerror})", "see what this machine lacks"
            ) from error
        return math.inf

    def _record(self, in_flight: _InFlight, outcome: ledger.Entry) -> bool:
        """Record the outcome of a message; return False if another watcher has changed the annotation at the same time."""
        annotated = self._annotated_object()
        entries = entries_of(annotated[1] if annotated else None)
        if annotated is None or not ledger.has_entry(entries, in_flight.message, in_flight.kind):
            return True  # the run is deleted, or was started again with new entries
        changes = {key: outcome[key] for key in ("state", "words")} | {"at": self._cluster.now()}
        return self._write(annotated, ledger.with_entry(entries, in_flight.message, in_flight.kind, changes))

    def _annotated_object(self) -> tuple[str, Object] | None:
        """Return kind and content of the object with the annotation, the same for every watcher.

        It is the record, if a launcher has created one: `kubernetes.ttl` deletes the attendant's Job.
        """
        for kind, name in (("ConfigMap", run_record.name_of(self._run)), ("Job", f"{self._run}-{ATTENDANT}")):
            if (existing := self._cluster.get(kind, name)) is not None:
                return kind, existing
        return None

    def _write(self, annotated: tuple[str, Object], entries: Sequence[ledger.Entry]) -> bool:
        """Write the annotation; return False if the object was changed since it was read."""
        kind, existing = annotated
        annotations = {NOTIFIED_ANNOTATION: as_json(list(entries))}
        metadata = {"resourceVersion": existing["metadata"].get("resourceVersion"), "annotations": annotations}
        try:
            self._cluster.patch(kind, existing["metadata"]["name"], {"metadata": metadata})
        except LauncherError as error:
            if http_status(error) != 409:
                raise
            return False
        return True


def entries_of(annotated: Object | None) -> list[ledger.Entry]:
    """Return the entries of messages in the annotation of an object."""
    try:
        listed = json.loads(annotation(annotated, NOTIFIED_ANNOTATION)) if annotated else []
        return [dict(entry) for entry in listed if {"key", "since", "at", "state"} <= entry.keys()]
    except (AttributeError, TypeError, ValueError):
        return []


def webhook_from_secret(cluster: Cluster, webhook: Webhook) -> Channel:
    """Return the channel to a webhook with the URL from its Secret. Raises NoChannelError, and ForbiddenError if the user may not read the Secret."""
    secret = cluster.get("Secret", webhook.secret)
    try:
        url = base64.b64decode(((secret or {}).get("data") or {})[webhook.key], validate=True).decode()
    except (KeyError, ValueError):
        what, namespace_option = f"Secret {webhook.secret}", f"-n {cluster.namespace}"
        remedy = f"kubectl create secret generic {webhook.secret} {namespace_option} --from-literal={webhook.key}=URL"
        if secret is not None:
            added = json.dumps({"stringData": {webhook.key: "URL"}})
            what, remedy = f"key {webhook.key} in the {what}", f"kubectl patch secret {webhook.secret} {namespace_option} --patch '{added}'"
        raise NoChannelError(f"there is no {what} in {cluster.description()}", remedy) from None
    return Channel("webhook", url=url, allow_http=webhook.allow_http)
