"""The Python stacks of a task, which its parent serves to processes on its machine, or in its container.

The parent listens on a loopback port, or on a socket in the run's directory, sends one line of JSON to each client, and closes:

    {"processes": [{"pid": 12, "command": "python train.py", "problem": "", "stacks": "Thread 0x..."}]}

`problem` says why a process has none. See trainer/stack_signal.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainer import stack_signal
from trainer.event_loop import EventLoop, Timer
from trainer.process_group import is_dead, is_suspended, process_stat

SOCKET_VARIABLE = "TRAINER_STACKS"  # the path of a socket; without it, PORT of the loopback address
PORT = 2225
_BEGIN_TIMEOUT = 3.0  # seconds for a process to begin to write
_IDLE_TIMEOUT = 0.3  # seconds without output after which its stacks are complete
_TOTAL_TIMEOUT = 12.0  # seconds for all processes of a task
_MAX_STACKS = 4 * 1024 * 1024  # bytes of one process
_READ = 64 * 1024
_SEND_TIMEOUT = 10.0  # seconds for a client to read the answer


@dataclass(frozen=True)
class ProcessStacks:
    """The stacks of one process, as faulthandler writes them; or why there are none."""

    pid: int
    command: str = ""
    problem: str = ""
    stacks: str = ""


class Stacks:
    """Asks the Python processes of a task for their stacks, one at a time, and answers clients."""

    def __init__(self, loop: EventLoop, directory: Path | None) -> None:
        self._loop = loop
        self._directory: Path | None = None
        self._registered: dict[int, tuple[str, int]] = {}  # process -> its start time, as in /proc, and its descriptor of the pipe
        self._until = 0.0  # deadline for asking further processes
        self._waiting: list[Callable[[list[ProcessStacks]], None]] = []
        self._pipes: list[int] = []
        self._partial = b""
        self._collector: _Collector | None = None
        self._asking = False
        self._server: socket.socket | None = None
        with contextlib.suppress(OSError):  # without pipes no process registers, and answers are empty
            if directory is not None:
                self._make_pipes(directory)
        with contextlib.suppress(OSError):  # the port is in use, or the file system has no sockets: nothing is served
            self._server = _listen(os.environ.get(SOCKET_VARIABLE, ""))
            loop.on_ready(self._server, selectors.EVENT_READ, self._accept)

    def _make_pipes(self, directory: Path) -> None:
        for name in (stack_signal.REGISTERED, stack_signal.STACKS):
            os.mkfifo(directory / name, 0o600)
            # Also open for writing: else the end of the last process that writes would be the pipe's end of file.
            self._pipes.append(os.open(directory / name, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
        self._loop.on_ready(self._pipes[0], selectors.EVENT_READ, self._register)
        self._loop.on_ready(self._pipes[1], selectors.EVENT_READ, self._take)
        self._directory = directory

    def environment(self, *, runs_built_in_trainer: bool) -> dict[str, str]:
        """Return variables for a task's program. A user's own program imports the file that registers it before all else."""
        if self._directory is None:
            return {}
        variables = {stack_signal.DIRECTORY_VARIABLE: str(self._directory)}
        if not runs_built_in_trainer:
            with contextlib.suppress(OSError):
                site = self._directory / "python"
                site.mkdir(exist_ok=True)
                (site / "sitecustomize.py").write_text(_source(), encoding="utf-8")
                variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
        return variables

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._loop.forget(self._server)
            self._server.close()
            if path := os.environ.get(SOCKET_VARIABLE):
                with contextlib.suppress(OSError):
                    Path(path).unlink()

    def ask(self, then: Callable[[list[ProcessStacks]], None]) -> None:
        """Call `then`, in the loop's thread, with the stacks of every live process that has registered."""
        self._waiting.append(then)
        if not self._asking:
            self._asking, self._until = True, time.monotonic() + _TOTAL_TIMEOUT
            self._register()
            self._next([pid for pid in self._registered if self._is_alive(pid)], [])

    def _is_alive(self, pid: int) -> bool:
        return not is_dead(pid) and process_stat(pid)[1] == self._registered[pid][0]

    def _register(self) -> None:
        """Read the registrations of processes."""
        with contextlib.suppress(BlockingIOError):
            while self._pipes and (read := os.read(self._pipes[0], _READ)):
                *lines, self._partial = (self._partial + read).split(b"\n")
                for pid, descriptor in (map(int, line.split()) for line in lines if line.replace(b" ", b"").isdigit()):
                    self._registered[pid] = process_stat(pid)[1], descriptor
        for pid in [pid for pid in self._registered if not self._is_alive(pid)]:
            del self._registered[pid]

    def _next(self, remaining: list[int], results: list[ProcessStacks]) -> None:
        """Ask the first of the remaining processes; if none remains, answer the clients."""
        if not remaining:
            self._collector, self._asking = None, False
            waiting, self._waiting = self._waiting, []
            for then in waiting:
                then(results)
            return

        pid = remaining[0]

        def finish(problem: str, stacks: str = "") -> None:
            self._next(remaining[1:], [*results, ProcessStacks(pid, _command(pid), problem, stacks)])

        def ended(read: bytes) -> None:
            finish(
                "" if read else "does not answer: it got no processor time, or uses the signal itself",
                read.decode("utf-8", "replace"),
            )

        self._collector = None
        if problem := self._ask_by_signal(pid):
            finish(problem)
        else:
            self._collector = _Collector(self._loop, ended)

    def _ask_by_signal(self, pid: int) -> str:
        """Send the signal; return why it was not sent, empty where it was."""
        self._drain()
        if time.monotonic() > self._until:
            return "was not asked: the others took too long"
        if is_suspended(pid):
            return "is stopped by a signal; SIGCONT continues it"
        if not _handles(pid, stack_signal.stack_signal()):
            return "does not handle the signal any more: it runs another program now"
        if not self._has_pipe(pid):
            return "has closed the pipe to which it would write"
        try:
            os.kill(pid, stack_signal.stack_signal())
        except OSError as error:
            return f"cannot be asked: {error.strerror}"
        return ""

    def _has_pipe(self, pid: int) -> bool:
        """Return whether a process's descriptor is still our pipe: some processes close all their descriptors."""
        with contextlib.suppress(OSError):
            used, own = Path(f"/proc/{pid}/fd/{self._registered[pid][1]}").stat(), os.fstat(self._pipes[1])
            return (used.st_dev, used.st_ino) == (own.st_dev, own.st_ino)
        return not Path("/proc/self/stat").exists()

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._pipes[1], _READ):
                pass

    def _take(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while read := os.read(self._pipes[1], _READ):
                if self._collector is not None:
                    self._collector.add(read)

    def _accept(self) -> None:
        assert self._server is not None  # noqa: S101 - only registered where it is
        with contextlib.suppress(OSError):
            connection, _ = self._server.accept()
            connection.setblocking(False)
            self.ask(lambda results: self._send(connection, _answer(results)))

    def _send(self, connection: socket.socket, left: bytes) -> None:
        def end() -> None:
            deadline.cancel()
            self._loop.forget(connection)
            connection.close()

        def push() -> None:
            nonlocal left
            try:
                left = left[connection.send(left) :]
            except BlockingIOError:
                return
            except OSError:
                left = b""
            if not left:
                end()

        deadline = self._loop.call_later(_SEND_TIMEOUT, end)
        self._loop.on_ready(connection, selectors.EVENT_WRITE, push)


class _Collector:
    """Collects the output of one process until it pauses."""

    def __init__(self, loop: EventLoop, ended: Callable[[bytes], None]) -> None:
        self._loop, self._ended = loop, ended
        self._read = b""
        self._timer: Timer = loop.call_later(_BEGIN_TIMEOUT, self._end)

    def add(self, read: bytes) -> None:
        """Add output."""
        self._read = (self._read + read)[:_MAX_STACKS]
        self._timer.cancel()
        self._timer = self._loop.call_later(_IDLE_TIMEOUT, self._end)

    def _end(self) -> None:
        self._ended(self._read)


def _listen(name: str) -> socket.socket:
    """Return the listening socket. Raises OSError."""
    if not name:
        server = socket.create_server(("127.0.0.1", PORT))
    else:
        path = Path(name)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        server = socket.socket(socket.AF_UNIX)
        with short_path(path) as short:
            server.bind(short)
        path.chmod(0o600)
        server.listen()
    server.setblocking(False)
    return server


@contextlib.contextmanager
def short_path(path: Path) -> Any:
    """Give a short alias of a socket's path, if the system has /proc: a socket's path may have at most 107 bytes (unix(7))."""
    if not Path("/proc/self/fd").is_dir():
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def _source() -> str:
    loader: Any = stack_signal.__spec__.loader
    source = str(loader.get_source(stack_signal.__name__))
    return source.replace("from __future__ import annotations\n", "")  # Python 3.6 does not know it


def _answer(results: list[ProcessStacks]) -> bytes:
    return json.dumps({"processes": [asdict(result) for result in results]}).encode() + b"\n"


def _handles(pid: int, number: int) -> bool:
    """Return whether a process handles a signal: the default action, which `exec` restores, would end it."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return not Path("/proc/self/stat").exists()


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()[:200]
    return ""
