"""Notifies people of one run for its supervisor, which is the only one that does: nothing is sent twice, and nothing waits for what is sent."""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from launcher.notify import ledger, outbox
from launcher.notify.message import STALL_GRACE, DueMessages, Message
from launcher.notify.outbox import VARIABLE, Sending
from launcher.runs.state_writer import say
from launcher.runs.status import RunStatus

_NOTIFY_TIMEOUT = 600.0  # seconds for which a message is tried
_STALL_POLL_INTERVAL = 5.0  # seconds, while a task is stalled


class SupervisorNotifier:
    """The messages of one start of a run. `due` is when to call `send_due` next, of time.monotonic; None where nothing is awaited."""

    def __init__(self, notify: Mapping[str, Any] | None, outcomes: Path, directory: str, clock: Callable[[], float] = time.time) -> None:
        """Run a program in `directory`. Take the webhook's URL out of this environment, which tasks inherit; forget what an earlier start has sent."""
        self.due: float | None = None
        self._clock, self._outcomes = clock, outcomes
        has_webhook = bool(notify and notify.get("webhook"))
        self._channels = outbox.channels(notify, os.environ.pop(VARIABLE, None) if has_webhook else None, directory)
        self._due = DueMessages()
        self._entries: list[ledger.Entry] = []
        self._sent: list[Sending] = []
        with contextlib.suppress(OSError):
            outcomes.unlink(missing_ok=True)

    def stalled(self) -> None:
        """Note that a task is stalled, or another one."""
        if self._channels:
            self.due = time.monotonic()

    def send_due(self, status: RunStatus) -> None:
        """Send what is due."""
        now = self._clock()
        for message in self._due.check(status, now):
            for channel in self._channels:
                if ledger.wait(self._entries, message, channel.kind, now) == 0.0:
                    self._entries = ledger.with_outcome(self._entries, message, channel.kind, {"at": now, "state": ledger.SENT})
                    self._send(channel, message)
        self._sent = [sending for sending in self._sent if sending.outcome() is None]
        self.due = time.monotonic() + min(_STALL_POLL_INTERVAL, STALL_GRACE) if self._due.is_stalled else None

    def end(self, status: RunStatus) -> None:
        """Send how the run has ended; its senders outlive this process."""
        self.send_due(status)
        for sending in self._sent:
            sending.detach()

    def _send(self, channel: outbox.Channel, message: Message) -> None:
        request = channel.request(message, _NOTIFY_TIMEOUT)
        say(f"telling by {channel.kind}: {message.text}")
        for outcomes in (self._outcomes, Path(os.devnull)):  # its directory may be gone, or full
            try:
                self._sent.append(Sending(request, outcomes=outcomes, log=None))
            except OSError as error:
                say(f"nobody was told by {channel.kind}: {error.strerror}")
            else:
                return
