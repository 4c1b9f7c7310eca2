"""The messages of a run on their way: a process for each, which outlives the one that starts it, and its outcome."""

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
# The variable with the URL where no cluster has the Secret: of the launcher's environment, or of the spec's `env_file`.
VARIABLE = "NOTIFY_WEBHOOK"


@dataclass(frozen=True)
class Channel:
    """A way to notify people: `command`, which runs in `directory`, or `webhook` by its URL or by a file that has it."""

    kind: str  # command, webhook
    command: tuple[str, ...] = ()
    directory: str = ""
    url: str | None = None
    url_file: str | None = None
    allow_http: bool = False

    def request(self, message: Message, seconds: float) -> dict[str, Any]:
        """Return what a sender is asked for that tries for `seconds`."""
        is_command = self.kind == "command"
        where: dict[str, Any] = (
            {"command": list(self.command), "directory": self.directory} if is_command else {"allow_http": self.allow_http}
        )
        for key, value in (("url", self.url), ("url_file", self.url_file)):
            where |= {} if value is None else {key: value}
        return {"payload": message.payload(), "channel": self.kind, "seconds": seconds, **where}


class Sending:
    """One message on its way; `outcome` is None until its sender has ended."""

    def __init__(self, request: Mapping[str, Any], *, outcomes: Path | None = None, log: int | None = subprocess.DEVNULL) -> None:
        """Start the sender. It writes to the file `outcomes` how it went, where that is given, and a failure in a line to `log`, None for this process's own stderr. Raises OSError."""
        source = source_directory()
        environment = os.environ | ({"PYTHONPATH": search_path(os.environ.get("PYTHONPATH"), source)} if source else {})
        with contextlib.ExitStack() as opened:
            self._process = subprocess.Popen(
                [sys.executable, "-I" if sys.flags.isolated else "-P", "-m", SENDER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if outcomes is None else opened.enter_context(outcomes.open("ab")),
                stderr=log,
                cwd="/",
                env=environment,
                start_new_session=True,
            )
        assert self._process.stdin is not None  # noqa: S101
        with contextlib.suppress(OSError):  # it has ended at once, which is seen by its outcome
            self._process.stdin.write(json.dumps(request).encode())
            self._process.stdin.close()
        self.pid = self._process.pid
        self._reads_outcome = outcomes is None
        self._event = str(request["payload"]["event"])

    def outcome(self) -> ledger.Entry | None:
        """Return how it has ended; None while it has not."""
        if self._process.poll() is None:
            return None
        done: ledger.Entry = {"state": ledger.FAILED, "words": f"{self._event}: the process that sends it has failed"}
        if self._reads_outcome and self._process.stdout is not None:
            with contextlib.suppress(ValueError, TypeError, IndexError), self._process.stdout as written:
                done = dict(json.loads(written.read().splitlines()[-1]))
        return done

    def detach(self) -> None:
        """Leave it to itself: no warning that it still runs."""
        self._process.returncode = 0


def read_outcomes(outcomes: Path) -> tuple[str, ...]:
    """Return in a line each what has become of the messages of which a file has the outcomes."""
    try:
        lines = outcomes.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    found: dict[tuple[str, str], ledger.Entry] = {}
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, KeyError):
            entry = json.loads(line)
            found[str(entry["key"]), str(entry["channel"])] = entry
    return ledger.outcomes(list(found.values()))


def channels(notify: Mapping[str, Any] | None, url: str | None, directory: str) -> Sequence[Channel]:
    """Return the channels that a spec's section names, as it is dumped; a webhook's alone where its URL is known."""
    given = notify or {}
    found = [Channel("command", tuple(given["command"]), directory)] if given.get("command") else []
    if given.get("webhook") and url is not None:
        found.append(Channel("webhook", url=url, allow_http=bool(given["webhook"].get("allow_http"))))
    return found
