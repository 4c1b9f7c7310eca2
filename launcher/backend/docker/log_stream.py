"""A container's output as lines with their times, as the engine kept them."""

import re
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import requests
from docker import DockerClient
from docker.errors import NotFound, create_api_error_from_http_exception

from launcher import timestamps
from launcher.runs.event_lines import LONGEST_LINE, log_line
from launcher.runs.status import LogLine

# RFC 3339 with nine digits of a second, and a space: every line of the engine's begins so.
_STAMP = len("2026-01-31T00:00:00.000000000Z ")
# Before each frame: the stream that it is of, three bytes of nothing, how many bytes follow (engine API, "Stream format" of attach).
_HEADER = struct.Struct(">BxxxL")


def lines(frames: Iterable[bytes], task: str, *, has_trainer: bool = True) -> Iterator[tuple[str, LogLine]]:
    """Yield each line with the engine's stamp for it. A line longer than 16 KiB comes in several frames."""
    stamp, partial, goes_on = "", bytearray(), False
    for frame in frames:
        for piece in re.findall(rb"[^\n]*\n|[^\n]+", frame):
            if not partial:
                stamp = piece[: _STAMP - 1].decode("ascii", "replace")
            partial += piece[_STAMP:]
            ends = piece.endswith(b"\n")
            if ends or len(partial) > LONGEST_LINE:
                yield stamp, _line(stamp, task, bytes(partial), has_events=has_trainer and not goes_on)
                partial, goes_on = bytearray(), not ends
    if partial:
        yield stamp, _line(stamp, task, bytes(partial), has_events=has_trainer and not goes_on)


def _line(stamp: str, task: str, written: bytes, *, has_events: bool) -> LogLine:
    try:
        time = timestamps.parse_rfc3339(stamp) or 0.0
    except ValueError:
        time = 0.0
    return log_line(time, task, written.removesuffix(b"\n"), has_events=has_events)


def read(
    client: DockerClient, container: str, task: str, *, after: str = "", tail: int | None = None, has_trainer: bool = True
) -> Iterator[tuple[str, LogLine]]:
    """Yield the lines there are: all, the last `tail`, or those after a stamp. Without a trainer in the container none is an event.

    Raises one of engine.ERRORS, NotFound also for a container that is being removed: its log goes first.
    """
    chosen: dict[str, Any] = {"stdout": 1, "stderr": 1, "timestamps": 1, "tail": "all" if tail is None else tail}
    if after:
        chosen["since"] = (timestamps.parse_rfc3339(after) or 0.0) - 0.001
    # Not by the client's own `logs`: whole, it gives the frames of a long line, each with a stamp, as one; as a stream it waits forever.
    api = client.api
    answer = api.get(f"{api.base_url}/v{api.api_version}/containers/{container}/logs", params=chosen, timeout=api.timeout)
    try:
        answer.raise_for_status()
    except requests.exceptions.HTTPError as error:
        if answer.status_code == requests.codes.conflict:
            raise NotFound(f"{task} is being removed") from error
        create_api_error_from_http_exception(error)
    yield from ((stamp, line) for stamp, line in lines(_frames(answer.content), task, has_trainer=has_trainer) if stamp > after)


def _frames(answer: bytes) -> Iterator[bytes]:
    """Yield the frames of a whole answer, each without its header."""
    at = 0
    while at + _HEADER.size <= len(answer):
        _, size = _HEADER.unpack_from(answer, at)
        at += _HEADER.size
        yield answer[at : at + size]
        at += size


def follow(
    client: DockerClient, container: str, task: str, *, after: str = "", opened: Callable[[Any], None] = lambda _: None
) -> Iterator[tuple[str, LogLine]]:
    """Yield the lines after a stamp, and those to come until the container ends. Raises one of engine.ERRORS.

    `opened` is given the engine's answer, whose `close` ends this from another thread.
    """
    since = (timestamps.parse_rfc3339(after) or 0.0) - 0.001 if after else None
    frames = client.api.logs(container, timestamps=True, since=since, stream=True, follow=True)
    opened(frames)
    yield from ((stamp, line) for stamp, line in lines(frames, task) if stamp > after)
