"""Sends the messages of one run from its supervisor, which does not wait for the sender processes. No other process sends any; a retry after an unknown outcome has the same id."""

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.notify import delivery, ledger
from launcher.notify.delivery import WEBHOOK_VARIABLE, SenderProcess
from launcher.notify.message import DueMessages, Message
from launcher.runs.state_writer import log_message
from launcher.runs.status import RunStatus

_NOTIFY_TIMEOUT = 600.0  # seconds for which sending a message is retried
_STALL_POLL_INTERVAL = 5.0  # seconds, while a task is stalled


class SupervisorNotifier:
    """The messages of one start of a run. `due` is the time of the next call of `send_due`, by time.monotonic; None if none is needed."""

    def __init__(self, notify: Mapping[str, Any] | None, outcomes: Path, directory: str) -> None:
        """Programs run in `directory`. The webhook's URL is taken out of this environment, which tasks inherit, and the outcomes of an earlier start are removed."""
        self.due: float | None = None
        self._outcomes = outcomes
        has_webhook = bool(notify and notify.get("webhook"))
        self._channels = delivery.channels(notify, os.environ.pop(WEBHOOK_VARIABLE, None) if has_webhook else None, directory)
        self._due_messages = DueMessages()
        self._entries: list[ledger.Entry] = []
        self._senders: list[SenderProcess] = []
        with contextlib.suppress(OSError):
            outcomes.unlink(missing_ok=True)

    def schedule_check(self) -> None:
        """Schedule a check: a task has stalled."""
        if self._channels:
            self.due = time.monotonic()

    def send_due(self, status: RunStatus) -> None:
        """Send the messages that are due."""
        now = time.time()
        for message in self._due_messages.check(status, now):
            for channel in self._channels:
                if ledger.wait_time(self._entries, message, channel.kind, now) == 0.0:
                    self._entries = ledger.with_entry(self._entries, message, channel.kind, {"at": now, "state": ledger.SENT})
                    self._send(channel, message)
        self._senders = [sender for sender in self._senders if not sender.has_ended()]
        self.due = time.monotonic() + _STALL_POLL_INTERVAL if self._due_messages.is_stalled else None

    def end(self, status: RunStatus) -> None:
        """Send the message about the end; its senders outlive this process."""
        self.send_due(status)
        for sender in self._senders:
            sender.detach()

    def _send(self, channel: delivery.Channel, message: Message) -> None:
        request = channel.request(message, _NOTIFY_TIMEOUT)
        log_message(f"sending by {channel.kind}: {message.text}")
        for outcomes in (self._outcomes, Path(os.devnull)):  # the run directory may be gone, or its disk full
            try:
                self._senders.append(SenderProcess(request, outcomes))
            except OSError as error:
                log_message(f"not sent by {channel.kind}: {error.strerror}")
            else:
                return
