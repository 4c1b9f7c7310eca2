"""The launcher's command line in processes that are forked from one that has imported it all.

Each is a process of its own, with the directory, environment, input and output it is given, as `python -m launcher` is; but a command
costs what it does, a twentieth of a second, and not also Python's start and the imports, seven times as much. What Python itself does at
a start is not tested so: tests/launcher/cli starts the real command for that, and wherever signals or terminals are the subject.
"""

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parents[1]
_SERVER = "import sys; sys.path[0] = sys.argv[1]; from tests import forked_launcher; forked_launcher.serve(sys.argv[2])"


class _Server:
    """The process that forks. It ends with the one that made this, whose end of its input is closed then."""

    def __init__(self) -> None:
        directory = tempfile.mkdtemp(prefix="launcher-")
        self.path = str(Path(directory, "socket"))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LAUNCHER_")}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVER, str(ROOT), self.path], cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        atexit.register(self._process.communicate)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", "the process that forks launchers did not start"


_servers: list[_Server] = []


def run(
    *arguments: str, cwd: Path = ROOT, env: dict[str, str] | None = None, stdin: str = "", timeout: float = 60
) -> "subprocess.CompletedProcess[str]":
    """Run a command line to its end, as subprocess.run does.

    Raises TimeoutExpired, with what it wrote, after `timeout` seconds, also where it has ended and somebody keeps its output open.
    """
    if not _servers:
        _servers.append(_Server())
    request = {"arguments": arguments, "cwd": str(cwd), "environment": dict(os.environ if env is None else env)}
    command, end = ["launcher", *arguments], time.monotonic() + timeout
    with socket.socket(socket.AF_UNIX) as connection, connection.makefile() as answers:
        connection.settimeout(timeout)
        connection.connect(_servers[0].path)
        given, output, errors = (os.pipe() for _ in range(3))
        theirs = (given[0], output[1], errors[1])
        socket.send_fds(connection, [json.dumps(request).encode()], theirs)
        connection.shutdown(socket.SHUT_WR)
        for fd in theirs:
            os.close(fd)
        readers = [_Reader(fd) for fd in (output[0], errors[0])]
        threading.Thread(target=_write, args=(given[1], stdin), daemon=True).start()
        pid = 0
        try:
            pid = _number(answers, "which process it had forked")
            code = _number(answers, f"how process {pid} ended")
        except TimeoutError:
            if pid:
                with contextlib.suppress(ProcessLookupError):  # it may just have ended
                    os.kill(pid, signal.SIGKILL)
            ended = False
        else:
            ended = all(reader.ends(end - time.monotonic()) for reader in readers)
        if not ended:
            raise subprocess.TimeoutExpired(command, timeout, *(reader.text(1) for reader in readers))
        written = [reader.text(0) for reader in readers]
    return subprocess.CompletedProcess(command, code, *written)


def _number(answers: TextIO, what: str) -> int:
    answer = answers.readline()
    assert answer, f"the process that forks launchers has died; it did not say {what}"
    return int(answer)


def _write(fd: int, text: str) -> None:
    with contextlib.suppress(BrokenPipeError), os.fdopen(fd, "w") as file:
        file.write(text)


class _Reader:
    """Reads a pipe to its end on a thread of its own, which closes it then."""

    def __init__(self, fd: int) -> None:
        self._parts: list[bytes] = []
        self._thread = threading.Thread(target=self._read, args=(fd,), daemon=True)
        self._thread.start()

    def _read(self, fd: int) -> None:
        while part := os.read(fd, 1 << 16):
            self._parts.append(part)
        os.close(fd)

    def ends(self, timeout: float) -> bool:
        """Return whether the other end is closed within `timeout` seconds."""
        self._thread.join(max(0, timeout))
        return not self._thread.is_alive()

    def text(self, timeout: float) -> str:
        """Return all of it; what is there already when nobody has closed the other end after `timeout` seconds."""
        self.ends(timeout)
        return b"".join(self._parts).decode()


def serve(path: str) -> None:
    """Fork a process for each connection to `path` until our input ends; return in none of them."""
    from launcher.cli.main import run as launcher
    from launcher.cli.verbs import VERBS

    for verb in VERBS.values():
        importlib.import_module(verb.module)
    for used_late in ("launcher.backend.local.backend", "launcher.cli.live", "launcher.cli.results", "launcher.plan.planner", "yaml"):
        importlib.import_module(used_late)
    gc.collect()
    gc.freeze()
    request = _next_request(path)
    if request is not None:
        _become(request)
        sys.exit(launcher(request["arguments"]))


def _next_request(path: str) -> dict[str, Any] | None:
    """Return, in a process of its own, what each connection asks for; None once our input has ended."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    os.write(1, b"ready\n")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait
    while True:
        ready, _, _ = select.select([listening.fileno(), 0], [], [])
        if 0 in ready:
            return None
        connection, _ = listening.accept()
        if os.fork():
            connection.close()
            continue
        listening.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        text, fds, _, _ = socket.recv_fds(connection, 1 << 16, 3)
        while more := connection.recv(1 << 16):
            text += more
        if pid := os.fork():
            for fd in fds:
                os.close(fd)
            connection.sendall(f"{pid}\n".encode())
            _, status = os.waitpid(pid, 0)
            with contextlib.suppress(BrokenPipeError):
                connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
            os._exit(0)
        connection.close()
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
            os.close(fd)
        request = json.loads(text)
        assert isinstance(request, dict)
        return request


def _become(request: dict[str, Any]) -> None:
    """Be a process that was started for the request."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = [str(ROOT / "launcher" / "__main__.py"), *request["arguments"]]
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), encoding="utf-8", write_through=unbuffered)
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w", closefd=False)), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )
    if os.environ.get("PYTHONWARNINGS"):
        warnings.simplefilter(os.environ["PYTHONWARNINGS"])  # type: ignore[arg-type]  # "error" or "default" are what tests set
