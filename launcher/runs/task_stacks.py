"""The Python stacks of a task, which its parent sends (trainer/stacks.py)."""

import json
import socket
from pathlib import Path
from typing import Protocol

from launcher.errors import LauncherError
from trainer.stacks import PORT, ProcessStacks, short_path

# Seconds: longer than the parent waits for several processes that do not answer.
ANSWER_TIMEOUT = 20.0
# Command that asks the parent inside a container, with the Python that the parent runs on.
CLIENT = (
    "python3",
    "-I",
    "-c",
    f"import socket,sys;s=socket.create_connection(('127.0.0.1',{PORT}),{ANSWER_TIMEOUT:g});sys.stdout.buffer.write(s.makefile('rb').read())",
)


class _Readable(Protocol):
    def recv(self, size: int, /) -> bytes: ...


def receive(task: str, connection: _Readable) -> tuple[ProcessStacks, ...]:
    """Return the stacks that a task's parent sends on a connection. Raises LauncherError if it sends none."""
    answer = b""
    try:
        while read := connection.recv(1 << 16):
            answer += read
    except TimeoutError as error:
        raise no_answer_error(task) from error
    except OSError as error:
        raise LauncherError(f"{task}: the connection to its parent broke off: {error}", "it may have ended; ask again") from error
    return parse(task, answer)


def parse(task: str, answer: bytes) -> tuple[ProcessStacks, ...]:
    """Return the stacks in the answer of a task's parent. Raises LauncherError if it has none."""
    if not answer.strip():
        raise no_parent_error(task)
    try:
        return tuple(ProcessStacks(**one) for one in json.loads(answer)["processes"])
    except (ValueError, KeyError, TypeError) as error:
        raise LauncherError(f"{task}: its answer was cut off, or came from another program on port {PORT}", "ask again") from error


def from_socket(task: str, path: Path) -> tuple[ProcessStacks, ...]:
    """Return the stacks of a task on this machine, whose parent listens at `path`. Raises LauncherError."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_TIMEOUT)
        try:
            with short_path(path) as short:
                connection.connect(short)
        except TimeoutError as error:
            raise no_answer_error(task) from error
        except OSError as error:
            raise no_parent_error(task) from error
        return receive(task, connection)


def no_answer_error(task: str) -> LauncherError:
    """Return the error of a parent that accepts a connection but does not answer."""
    return LauncherError(
        f"{task}: its parent does not answer: it is stopped, or its machine or container is frozen", "continue it, or kill it"
    )


def no_parent_error(task: str) -> LauncherError:
    """Return the error of a task without a parent that listens."""
    return LauncherError(
        f"{task}: it has no parent process that could report its stacks",
        "it has ended, is still starting, or runs without the trainer's parent (`supervise: false`, an entrypoint of an image)",
    )
