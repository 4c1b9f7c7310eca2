"""The channels of a run's messages, and the process that sends one by a channel; it may outlive the process that started it."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.notify import ledger
from launcher.notify.message import Message
from launcher.plan.machine import search_path, source_directory

SENDER = "launcher.notify.sender"
# Outside Kubernetes, the variable with the URL: of the launcher's environment, or of the spec's `env_file`.
WEBHOOK_VARIABLE = "NOTIFY_WEBHOOK"


@dataclass(frozen=True)
class Channel:
    """A way to notify people: `command`, which runs in `directory`, or `webhook`, by its `url` or else by the `url_file` that has it."""

    kind: str  # command, webhook
    command: tuple[str, ...] = ()
    directory: str = ""
    url: str | None = None
    url_file: str | None = None
    allow_http: bool = False

    def request(self, message: Message, seconds: float) -> dict[str, Any]:
        """Return the request to a sender that tries for `seconds`."""
        is_command = self.kind == "command"
        destination: dict[str, Any] = (
            {"command": list(self.command), "directory": self.directory} if is_command else {"allow_http": self.allow_http}
        )
        for key, value in (("url", self.url), ("url_file", self.url_file)):
            destination |= {} if value is None else {key: value}
        return {"payload": message.payload(), "channel": self.kind, "seconds": seconds, **destination}


class SenderProcess:
    """The process that sends one message."""

    def __init__(self, request: Mapping[str, Any], outcomes: Path | None = None) -> None:
        """Start it. With a file `outcomes`, it appends its outcome there, and a line about a failure to this process's stderr; else `outcome` has it. Raises OSError."""
        source = source_directory()
        environment = os.environ | ({"PYTHONPATH": search_path(os.environ.get("PYTHONPATH"), source)} if source else {})
        with contextlib.ExitStack() as stack:
            self._process = subprocess.Popen(
                [sys.executable, "-I" if sys.flags.isolated else "-P", "-m", SENDER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if outcomes is None else stack.enter_context(outcomes.open("ab")),
                stderr=subprocess.DEVNULL if outcomes is None else None,
                cwd="/",
                env=environment,
                start_new_session=True,
            )
        assert self._process.stdin is not None  # noqa: S101
        with contextlib.suppress(OSError):  # it has ended at once, as its outcome shows
            self._process.stdin.write(json.dumps(request).encode())
            self._process.stdin.close()
        self.pid = self._process.pid
        self._event = str(request["payload"]["event"])

    def has_ended(self) -> bool:
        """Return whether it has sent the message, or has failed."""
        return self._process.poll() is not None

    def outcome(self) -> ledger.Entry | None:
        """Return the outcome of a sender without a file for it; None while it runs."""
        if not self.has_ended():
            return None
        assert self._process.stdout is not None  # noqa: S101
        with contextlib.suppress(ValueError, TypeError, IndexError), self._process.stdout as stdout:
            return dict(json.loads(stdout.read().splitlines()[-1]))
        return {"state": ledger.FAILED, "words": f"{self._event}: the process that sends it has failed"}

    def detach(self) -> None:
        """Let it outlive this process, without the warning of Popen that it still runs."""
        self._process.returncode = 0


def read_outcomes(outcomes: Path) -> tuple[str, ...]:
    """Return the outcomes in a file for people, a line for each message."""
    try:
        lines = outcomes.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    entries: dict[tuple[str, str], ledger.Entry] = {}
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, KeyError):
            entry = json.loads(line)
            entries[str(entry["key"]), str(entry["channel"])] = entry
    return ledger.outcomes(list(entries.values()))


def channels(notify: Mapping[str, Any] | None, url: str | None, directory: str) -> Sequence[Channel]:
    """Return the channels of a spec's dumped section `notify`, a webhook only if its URL is known."""
    section = notify or {}
    result = [Channel("command", tuple(section["command"]), directory)] if section.get("command") else []
    if section.get("webhook") and url is not None:
        result.append(Channel("webhook", url=url, allow_http=bool(section["webhook"].get("allow_http"))))
    return result
