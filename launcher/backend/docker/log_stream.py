"""A container's output as lines with times, read from the engine's log."""

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

# Each line of the engine's log begins with a time in RFC 3339, with nanoseconds, and a space.
_STAMP_LENGTH = len("2026-01-31T00:00:00.000000000Z ")
# The header of a frame: its stream, three unused bytes, the frame's length (engine API, "Stream format" of attach).
_HEADER = struct.Struct(">BxxxL")


def lines(frames: Iterable[bytes], task: str, *, has_parent: bool = True) -> Iterator[tuple[str, LogLine]]:
    """Yield each line with the engine's time stamp. A line longer than 16 KiB comes in several frames."""
    stamp, partial, is_continuation = "", bytearray(), False
    for frame in frames:
        for piece in re.findall(rb"[^\n]*\n|[^\n]+", frame):
            if not partial:
                stamp = piece[: _STAMP_LENGTH - 1].decode("ascii", "replace")
            partial += piece[_STAMP_LENGTH:]
            ends = piece.endswith(b"\n")
            if ends or len(partial) > LONGEST_LINE:
                yield stamp, _line(stamp, task, bytes(partial), has_events=has_parent and not is_continuation)
                partial, is_continuation = bytearray(), not ends
    if partial:
        yield stamp, _line(stamp, task, bytes(partial), has_events=has_parent and not is_continuation)


def _line(stamp: str, task: str, written: bytes, *, has_events: bool) -> LogLine:
    return log_line(timestamps.parse_rfc3339(stamp) or 0.0, task, written.removesuffix(b"\n"), has_events=has_events)


def read(
    client: DockerClient, container: str, task: str, *, after: str = "", tail: int | None = None, has_parent: bool = True
) -> Iterator[tuple[str, LogLine]]:
    """Yield the lines so far: all, the last `tail`, or those after a time stamp. Without a trainer in the container no line is an event.

    Raises one of engine.ERRORS; NotFound also for a container that is being removed, since its log is removed first.
    """
    params: dict[str, Any] = {"stdout": 1, "stderr": 1, "timestamps": 1, "tail": "all" if tail is None else tail}
    if after:
        params["since"] = (timestamps.parse_rfc3339(after) or 0.0) - 0.001
    # The client's own `logs` does not do: without `stream` it joins the frames of a long line, with the time stamp of each; with `stream` it
    # has no timeout.
    api = client.api
    response = api.get(f"{api.base_url}/v{api.api_version}/containers/{container}/logs", params=params, timeout=api.timeout)
    try:
        response.raise_for_status()
    except requests.exceptions.HTTPError as error:
        if response.status_code == requests.codes.conflict:
            raise NotFound(f"{task} is being removed") from error
        create_api_error_from_http_exception(error)
    yield from ((stamp, line) for stamp, line in lines(_frames(response.content), task, has_parent=has_parent) if stamp > after)


def _frames(content: bytes) -> Iterator[bytes]:
    """Yield the frames of a whole response, each without its header."""
    at = 0
    while at + _HEADER.size <= len(content):
        _, size = _HEADER.unpack_from(content, at)
        at += _HEADER.size
        yield content[at : at + size]
        at += size


def follow(
    client: DockerClient, container: str, task: str, *, after: str = "", opened: Callable[[Any], None] = lambda _: None
) -> Iterator[tuple[str, LogLine]]:
    """Yield the lines after a time stamp, and new ones until the container ends. Raises one of engine.ERRORS.

    `opened` is called with the engine's stream; another thread may end this by the stream's `close`.
    """
    since = (timestamps.parse_rfc3339(after) or 0.0) - 0.001 if after else None
    frames = client.api.logs(container, timestamps=True, since=since, stream=True, follow=True)
    opened(frames)
    yield from ((stamp, line) for stamp, line in lines(frames, task) if stamp > after)
