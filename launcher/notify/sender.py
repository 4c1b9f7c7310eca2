"""Sends one message: `python -m launcher.notify.sender`, in its own process, so that a hanging receiver holds up no run, supervisor or launcher.

It reads a request from stdin, a JSON object:

- `payload`, `channel` (command or webhook), and `seconds`, the time for all tries
- for a command: `command` and its `directory`
- for a webhook: `url` or `url_file`, and `allow_http`

It writes a line of JSON to stdout if the first try fails and there is time for another, and one at the end; after a failure also a line to stderr.
The URL is a secret: it appears in no line, argument or variable.
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
from launcher.timestamps import rfc3339

_DELAYS = (1.0, 60.0)  # seconds between tries: the first delay, which doubles up to the second
_REQUEST_TIMEOUT = 15.0  # seconds of one try
_COMMAND_TIMEOUT = 60.0  # the same for a program
# Seconds beyond `seconds` after which this process ends in any case: more than _COMMAND_TIMEOUT, so that a command's last try can end; less than
# _SENDER_MARGIN in backend/kubernetes/notifier.py, so that no other process sends meanwhile.
_EXIT_AFTER = 75.0
_READ_SIZE = 64 * 1024
_TAIL_SIZE = 2000  # the last bytes of a program's output, for its last line
_MAX_LINE = 200  # characters of that line


class DeliveryError(Exception):
    """One try has failed. Its text must not contain the URL."""


class _TryTimeoutError(Exception):
    """One try took too long."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: another server may belong to anyone."""

    def redirect_request(self, *_given: Any, **_named: Any) -> None:
        return None


def deliver(
    request: Mapping[str, Any], delays: tuple[float, float] = _DELAYS, on_first_failure: Callable[[str], object] | None = None
) -> tuple[str, int]:
    """Try for the request's `seconds` to send the message; return the cause of a failure, empty after a success, and the number of tries.

    `on_first_failure`, if there is one, is called with the cause if the first try fails and there will be a second.
    """
    until, delay = time.monotonic() + float(request["seconds"]), delays[0]
    for tries in itertools.count(1):
        try:
            (_post if request["channel"] == "webhook" else _run_command)(request)
        except DeliveryError as error:
            if time.monotonic() + delay > until:
                return str(error), tries
            if tries == 1 and on_first_failure is not None:
                on_first_failure(str(error))
        else:
            return "", tries
        time.sleep(delay)
        delay = min(2 * delay, delays[1])
    raise AssertionError


def _post(request: Mapping[str, Any]) -> None:
    url = _url(request)
    body = json.dumps(request["payload"]).encode()
    try:
        http_request = urllib.request.Request(url, body, {"Content-Type": "application/json", "User-Agent": "tf-launcher"}, method="POST")  # noqa: S310  _url has checked its scheme
        with _time_limit(_REQUEST_TIMEOUT), urllib.request.build_opener(_NoRedirects()).open(http_request, timeout=_REQUEST_TIMEOUT):
            pass
    except urllib.error.HTTPError as error:
        error.close()
        to = " to another address, where no message is sent" if error.code in range(300, 400) else ""
        raise DeliveryError(f"the webhook answered {_status(error.code)}{to}") from None
    except (_TryTimeoutError, TimeoutError):
        raise DeliveryError(f"the webhook did not answer within {_REQUEST_TIMEOUT:g} s") from None
    except urllib.error.URLError as error:
        raise DeliveryError(f"the webhook was not reached: {_cause(error.reason)}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DeliveryError(f"the webhook was not reached: {_cause(error)}") from None


def _url(request: Mapping[str, Any]) -> str:
    """Return the URL to send to. Raises DeliveryError if it is missing or not allowed."""
    try:
        url = str(request["url"] if "url" in request else Path(request["url_file"]).read_text(encoding="utf-8")).strip()
        parts = urlsplit(url)
        is_valid = bool(parts.hostname) and url.isprintable() and " " not in url and (parts.port is None or parts.port > 0)
    except OSError:
        raise DeliveryError("the Secret with the webhook's URL does not exist, or lacks its key") from None
    except ValueError:
        is_valid = False
    if not is_valid or parts.scheme not in {"http", "https"}:
        raise DeliveryError("the webhook's URL is not an https: URL")
    if parts.scheme == "http" and not request["allow_http"]:
        raise DeliveryError("the webhook's URL begins with http:, so messages are not encrypted; notify.webhook.allow_http allows it")
    if parts.username is not None:
        raise DeliveryError("the webhook's URL contains a user name, which is not supported")
    return url


def _cause(error: object) -> str:
    """Return the cause of an error without the URL: the text of the system's errors, only the class of others."""
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
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise _TryTimeoutError in a block that takes longer. A socket timeout is not enough: a server may send a byte now and then."""

    def expire(_number: int, _frame: object) -> NoReturn:
        raise _TryTimeoutError

    previous = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _run_command(request: Mapping[str, Any]) -> None:
    payload, command = request["payload"], request["command"]
    directory = str(request.get("directory") or "")
    if directory and not Path(directory).is_dir():
        raise DeliveryError(f"{command[0]} cannot be started: there is no directory {directory}")
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=directory or None,
            env={**os.environ, **variables(payload)},
            start_new_session=True,
        )
    except OSError as error:
        raise DeliveryError(f"{command[0]} cannot be started: {error.strerror}") from None
    assert process.stdin is not None  # noqa: S101
    assert process.stdout is not None  # noqa: S101
    with contextlib.suppress(OSError):  # the program may not read it
        process.stdin.write(json.dumps(payload).encode() + b"\n")
        process.stdin.close()
    with process.stdout:
        last_line = _last_line(process, _COMMAND_TIMEOUT)
        is_late = process.poll() is None
        if is_late:  # before closing its pipe, which might end it, too
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if is_late:
        raise DeliveryError(f"{command[0]} did not end within {_COMMAND_TIMEOUT:g} s, and was killed")
    if process.returncode:
        raise DeliveryError(f"{command[0]} ended with {_ending(process.returncode)}" + (f": {last_line}" if last_line else ""))


def _ending(code: int) -> str:
    names = {int(number): number.name for number in signal.Signals}  # most real-time signals have none
    return f"exit code {code}" if code > 0 else f"signal {names.get(-code, -code)}"


def _last_line(process: "subprocess.Popen[bytes]", seconds: float) -> str:
    """Read a program's output until it ends, at most for `seconds`; return its last line. Its child processes are not waited for."""
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
        read = out.read(_READ_SIZE)
        is_open = read != b""
        tail = (tail + (read or b""))[-_TAIL_SIZE:]
    lines = [line.strip() for line in tail.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1][:_MAX_LINE] if lines else ""


def main() -> int:
    """Send the message of the request on stdin."""
    request = json.loads(sys.stdin.buffer.read())
    guard = threading.Timer(float(request["seconds"]) + _EXIT_AFTER, os._exit, (1,))
    guard.daemon = True
    guard.start()
    payload, began = request["payload"], time.time()

    def report(state: str, text: str) -> None:
        outcome = {"key": payload["id"], "channel": request["channel"], "state": state, "at": round(time.time(), 3)}
        with contextlib.suppress(OSError):
            sys.stdout.write(json.dumps({**outcome, "words": f"{payload['event']}: {text}"}) + "\n")
            sys.stdout.flush()

    retried = f"retried until {rfc3339(began + float(request['seconds']), 'seconds')}"
    cause, tries = deliver(
        request, on_first_failure=lambda cause: report(CLAIMED, f"not yet sent by {request['channel']}: {cause}; {retried}")
    )
    suffix = "" if tries == 1 else f" ({tries} tries)"
    if not cause:
        report(SENT, f"sent by {request['channel']} at {rfc3339(time.time(), 'seconds')}{suffix}")
        return 0
    text = f"not sent by {request['channel']}: {cause}{suffix}"
    report(FAILED, text)
    with contextlib.suppress(OSError):
        print(f"{rfc3339(time.time())} {payload['name']}, {payload['event']}: {text}", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
