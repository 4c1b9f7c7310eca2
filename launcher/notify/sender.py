"""Sends one message: `python -m launcher.notify.sender`, a process of its own, so that nothing that hangs holds up a run, its supervisor or a launcher.

It reads a request from stdin, JSON with `payload`, `channel` (command or webhook), `seconds` for which it is tried, and `command` with the `directory` in which it runs, or for
a webhook `url` or `url_file`, and `allow_http`. It writes a line of JSON to stdout when the first try fails, and one when it has ended; where that is a failure, a line to stderr, too. An URL is a
password: no line, argument or variable has it.
"""

import contextlib
import http.client
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from launcher.notify.ledger import CLAIMED, FAILED, SENT
from launcher.notify.message import variables
from launcher.timestamps import rfc3339, to_the_second

_DELAYS = (1.0, 60.0)  # seconds until the next try: first, and at most; doubled each time
_REQUEST_TIMEOUT = 15.0  # seconds of one try
_COMMAND_TIMEOUT = 60.0
_GIVES_UP = 60.0  # seconds beyond all of its time after which this process ends, whatever it does
_READ = 64 * 1024
_TAIL = 2000  # bytes of a program's output that are looked at
_LONGEST = 200  # characters of its last line


class FailedError(Exception):
    """A message was not taken; its words have no URL."""


class _TooLongError(Exception):
    """One try has had its time."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A message goes where it was meant to go: another server may be anybody's."""

    def redirect_request(self, *_given: Any, **_named: Any) -> None:
        return None


def deliver(
    request: Mapping[str, Any], delays: tuple[float, float] = _DELAYS, failed_first: Callable[[str], object] = str
) -> tuple[str, int]:
    """Try until the message was taken, or for the request's `seconds`; return why it was not, empty where it was, and how often it was tried.

    `failed_first` is called with why the first try has failed, where there is a second.
    """
    until, delay = time.monotonic() + float(request["seconds"]), delays[0]
    for tries in itertools.count(1):
        try:
            (_post if request["channel"] == "webhook" else _call)(request)
        except FailedError as error:
            if time.monotonic() + delay > until:
                return str(error), tries
            if tries == 1:
                failed_first(str(error))
        else:
            return "", tries
        time.sleep(delay)
        delay = min(2 * delay, delays[1])
    raise AssertionError


def _post(request: Mapping[str, Any]) -> None:
    url = _url(request)
    body = json.dumps(request["payload"]).encode()
    try:
        posting = urllib.request.Request(url, body, {"Content-Type": "application/json", "User-Agent": "tf-launcher"}, method="POST")  # noqa: S310  its scheme was looked at
        with _within(_REQUEST_TIMEOUT), urllib.request.build_opener(_NoRedirects()).open(posting, timeout=_REQUEST_TIMEOUT):
            pass
    except urllib.error.HTTPError as error:
        error.close()
        to = " to another address, where no message is sent" if error.code in range(300, 400) else ""
        raise FailedError(f"the webhook answered {_status(error.code)}{to}") from None
    except (_TooLongError, TimeoutError):
        raise FailedError(f"the webhook did not answer within {_REQUEST_TIMEOUT:g} s") from None
    except urllib.error.URLError as error:
        raise FailedError(f"the webhook was not reached: {_why(error.reason)}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise FailedError(f"the webhook was not reached: {_why(error)}") from None


def _url(request: Mapping[str, Any]) -> str:
    """Return the URL to send to. Raises FailedError where there is none that may be used."""
    try:
        url = str(request["url"] if "url" in request else Path(request["url_file"]).read_text(encoding="utf-8")).strip()
        parts = urlsplit(url)
        known = bool(parts.hostname) and url.isprintable() and " " not in url and (parts.port is None or parts.port > 0)
    except OSError:
        raise FailedError("the Secret with the webhook's URL is not there, or not its key") from None
    except ValueError:
        known = False
    if not known or parts.scheme not in {"http", "https"}:
        raise FailedError("what the webhook's Secret has is no URL that begins with https:")
    if parts.scheme == "http" and not request["allow_http"]:
        raise FailedError("the webhook's URL begins with http:, which everybody on the way reads; notify.webhook.allow_http allows it")
    if parts.username is not None:
        raise FailedError("the webhook's URL has a user's name, which is not supported")
    return url


def _why(error: object) -> str:
    """Return the cause of an error without the URL: of those that are not the system's, their kind alone."""
    if isinstance(error, TimeoutError):
        return "it does not answer"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__


def _status(code: int) -> str:
    with contextlib.suppress(ValueError):
        return f"{code} {HTTPStatus(code).phrase}"
    return str(code)


@contextlib.contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Raise _TooLongError in a block that takes longer: a server that sends a byte now and then meets every other deadline."""

    def over(_number: int, _frame: object) -> NoReturn:
        raise _TooLongError

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _call(request: Mapping[str, Any]) -> None:
    payload, words = request["payload"], request["command"]
    within = float(request.get("ends_within", _COMMAND_TIMEOUT))
    directory = str(request.get("directory") or "")
    if directory and not Path(directory).is_dir():
        raise FailedError(f"{words[0]} cannot be started: there is no directory {directory}")
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=directory or None,
            env={**os.environ, **variables(payload)},
            start_new_session=True,
        )
    except OSError as error:
        raise FailedError(f"{words[0]} cannot be started: {error.strerror}") from None
    assert process.stdin is not None  # noqa: S101
    assert process.stdout is not None  # noqa: S101
    with contextlib.suppress(OSError):  # it need not read
        process.stdin.write(json.dumps(payload).encode() + b"\n")
        process.stdin.close()
    with process.stdout:
        last_line = _last_line(process, within)
        is_late = process.poll() is None
        if is_late:  # before its pipe is closed, which may end it, too
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if is_late:
        raise FailedError(f"{words[0]} did not end within {within:g} s, and was killed")
    if process.returncode:
        raise FailedError(f"{words[0]} ended with {_ending(process.returncode)}" + (f": {last_line}" if last_line else ""))


def _ending(code: int) -> str:
    return f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"


def _last_line(process: "subprocess.Popen[bytes]", seconds: float) -> str:
    """Read what a program writes until it ends, or for so many seconds; return its last line. Processes that it leaves behind are not waited for."""
    out = process.stdout
    assert out is not None  # noqa: S101
    os.set_blocking(out.fileno(), False)
    tail, until, is_open = b"", time.monotonic() + seconds, True
    while (left := until - time.monotonic()) > 0:
        ended = process.poll() is not None
        readable = is_open and select.select([out], [], [], 0.0 if ended else min(left, 0.1))[0]
        if not readable:
            if ended:
                break
            time.sleep(0.0 if is_open else 0.05)
            continue
        read = out.read(_READ)
        is_open = read != b""
        tail = (tail + (read or b""))[-_TAIL:]
    lines = [line.strip() for line in tail.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1][:_LONGEST] if lines else ""


def main() -> int:
    """Send the message that stdin has."""
    request = json.loads(sys.stdin.buffer.read())
    guard = threading.Timer(float(request["seconds"]) + _GIVES_UP, os._exit, (1,))
    guard.daemon = True
    guard.start()
    payload, began = request["payload"], time.time()

    def note(state: str, words: str) -> None:
        done = {"key": payload["id"], "channel": request["channel"], "state": state, "at": round(time.time(), 3)}
        with contextlib.suppress(OSError):
            sys.stdout.write(json.dumps({**done, "words": f"{payload['event']}: {words}"}) + "\n")
            sys.stdout.flush()

    again = f"it is tried until {to_the_second(began + float(request['seconds']))}"
    why, tries = deliver(request, failed_first=lambda why: note(CLAIMED, f"nobody is told yet by {request['channel']}: {why}; {again}"))
    often = "" if tries == 1 else f" ({tries} tries)"
    if not why:
        note(SENT, f"told by {request['channel']} at {to_the_second(time.time())}{often}")
        return 0
    words = f"nobody was told by {request['channel']}: {why}{often}"
    note(FAILED, words)
    with contextlib.suppress(OSError):
        print(f"{rfc3339(time.time())} {payload['name']}, {payload['event']}: {words}", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
