"""Processes of Python that are forked from one that has imported what they use: the launcher's command line, TensorFlow, or the tests.

Each is a process of its own, with the directory, environment, input and output it is given. A command of the launcher costs what it does,
a twentieth of a second, and not also Python's start and the imports, seven times as much; a process that trains costs four seconds of a
core less, and so does each task that a launcher starts (`forked_python.py`). Python's own start is not tested so:
tests/launcher/cli starts the real command for that, and wherever signals or terminals are the subject; tests/trainer starts most tasks so, too.
"""

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from tests import forked_python

ROOT = Path(__file__).resolve().parents[1]
TENSORFLOW, DOCKER, KUBERNETES, TESTS = "tensorflow", "docker", "kubernetes", "tests"
# Tasks' imports of others; the rest of TensorFlow and Keras comes with them.
_BY_TASKS = (TENSORFLOW, "keras", "numpy", "pydantic")
# Verbs' imports when they are used: of all of them, and of those of runs in containers or pods.
_LATE = ("launcher.backend.local.backend", "launcher.cli.live", "launcher.cli.planning", "launcher.cli.results", "yaml")
_LATER = {
    DOCKER: ("launcher.backend.docker.backend", "launcher.render.compose"),
    KUBERNETES: ("launcher.backend.kubernetes.backend", "launcher.render.kubernetes.jobs"),
}
_SERVER = "import sys; sys.path[0] = sys.argv[1]; from tests import forked; forked.serve(*sys.argv[2:4])"
_LAUNCHER = [sys.executable, "-m", "launcher"]
# Files beside the sockets: what pytest was asked for, and the processor seconds that collecting took.
ASKED, SECONDS = "asked", "seconds"


# How the variables begin that a developer may have set for runs of their own.
FOREIGN = ("TF_CONFIG", "TRAINER_", "LAUNCHER_", "RUN_DIR", "RUN_NAME", "GRPC_", "TF_NUM_", "OMP_NUM_THREADS", "KERAS_BACKEND", "COLUMNS")

# Variables that each test sets for its processes, which TensorFlow reads as it is imported.
IMPORT_ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "2"}

group = ""  # the file of the cgroup that processes count to, where `pytest --costs` has one


class _Shared:
    """The processes that fork, one for each engine, of one run of pytest."""

    directory = ""  # of their sockets

    def make(self) -> str:
        """Make the directory. They end with this process, which alone keeps a pipe open."""
        self.directory = tempfile.mkdtemp(prefix="launcher-")
        atexit.register(shutil.rmtree, self.directory, ignore_errors=True)
        os.mkfifo(f"{self.directory}/alive")
        os.open(f"{self.directory}/alive", os.O_RDWR)
        return self.directory

    def connect(self, engine: str) -> socket.socket:
        """Return a connection to the one for an engine, which is started where none of the test processes has done so, or where it has died."""
        with self._locked(engine) as path:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(path)
            except (FileNotFoundError, ConnectionRefusedError):
                self._start(path, engine)
                connection.connect(path)
        return connection

    def prepare(self, engine: str) -> None:
        """Start the one for an engine before anybody needs it, unless one was started. Whoever needs it sees why it does not start."""
        with contextlib.suppress(OSError, AssertionError), self._locked(engine) as path:
            if not Path(path).exists():
                self._start(path, engine)

    @contextlib.contextmanager
    def _locked(self, engine: str) -> Iterator[str]:
        path = f"{self.directory or self.make()}/{engine or 'launcher'}"
        with Path(f"{path}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield path

    def _start(self, path: str, engine: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)} | IMPORT_ENVIRONMENT
        command, environment = forked_python.padded([sys.executable, "-c", _SERVER, str(ROOT), path, engine], environment)
        alive = os.open(f"{self.directory}/alive", os.O_RDONLY | os.O_NONBLOCK)
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=alive, stdout=subprocess.PIPE)
        os.close(alive)
        assert process.stdout is not None
        with process.stdout as output:
            assert output.readline() == b"ready\n", f"the process that forks others did not start: {command}"
        process.returncode = 0  # it ends with the run of pytest: nobody waits for it


shared = _Shared()


class Process:
    """A process that was forked for a command, `python FILE` or `python -m MODULE` of this repository, or `python -c`; named as subprocess.Popen."""

    def __init__(self, words: list[str], *, cwd: Path, env: Mapping[str, str], fds: tuple[int, int, int], engine: str) -> None:
        self.args, self.returncode = words, None
        self._answer = b""
        self._connection = shared.connect(engine)
        request = {"words": words, "cwd": str(cwd), "environment": dict(env), "group": group}
        socket.send_fds(self._connection, [json.dumps(request).encode()], fds)
        self._connection.shutdown(socket.SHUT_WR)
        self.pid = self._number(60)
        assert self.pid is not None, "the process that forks others does not answer"

    args: list[str]
    returncode: int | None

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        if self.returncode is None:
            self.returncode = self._number(0)
            if self.returncode is not None:
                self.close()
        return self.returncode

    def close(self) -> None:
        """Listen to its end no more."""
        self._connection.close()

    def wait(self, timeout: float = 600) -> int:
        """Return the exit code, a signal's number negative. Raises TimeoutExpired after `timeout` seconds."""
        if self.returncode is None:
            select.select([self._connection], [], [], max(0, timeout))
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, where it has not ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it may just have ended
                os.kill(self.pid or 0, number)

    def kill(self) -> None:
        """Kill it, where it has not ended."""
        self.send_signal(signal.SIGKILL)

    def show(self) -> None:
        """Have it, and those of its own that were forked, too, write to their stderr where each thread is; the signal would end others."""
        children = subprocess.run(["pgrep", "-P", str(self.pid)], capture_output=True, text=True, check=False).stdout.split()
        for pid in (self.pid or 0, *map(int, children)):
            with contextlib.suppress(OSError):  # it has ended
                if pid == self.pid or _catches(pid, signal.SIGUSR2):
                    os.kill(pid, signal.SIGUSR2)
        time.sleep(1)

    def _number(self, timeout: float) -> int | None:
        """Return the next number that is told; None where it is not within `timeout` seconds."""
        while b"\n" not in self._answer:
            if not select.select([self._connection], [], [], timeout)[0]:
                return None
            part = self._connection.recv(64)
            assert part, f"the process that forks others has died; {self.args}"
            self._answer += part
        number, _, self._answer = self._answer.partition(b"\n")
        return int(number)


def _catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal (proc_pid_status(5), SigCgt). Raises OSError where it, or /proc, is not there."""
    caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def piped(words: list[str], *, cwd: Path, env: Mapping[str, str], engine: str, errors: int | None = None) -> tuple[Process, TextIO]:
    """Start a command and return what it writes, with its errors unless those go to the descriptor `errors`."""
    reading, writing = os.pipe()
    process = Process(words, cwd=cwd, env=env, fds=(0, writing, writing if errors is None else errors), engine=engine)
    os.close(writing)
    return process, os.fdopen(reading, encoding="utf-8")


class Unended(subprocess.TimeoutExpired):
    """A command that has not ended in time. Its message has the end of what it wrote, and with that the stacks of its threads if it still ran."""

    def __str__(self) -> str:
        return f"{super().__str__()}; it wrote, in the end:\n{(self.output + self.stderr)[-6000:]}"


def launcher(
    *arguments: str, cwd: Path = ROOT, env: Mapping[str, str] | None = None, stdin: str = "", timeout: float = 60, engine: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Run a command line of the launcher to its end; `engine` has it find imported what runs in containers or pods need, or its tasks TensorFlow."""
    return run([*_LAUNCHER, *arguments], cwd=cwd, env=env, stdin=stdin, timeout=timeout, engine=engine)


def run(
    words: list[str], *, cwd: Path = ROOT, env: Mapping[str, str] | None = None, stdin: str = "", timeout: float = 60, engine: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, as subprocess.run does.

    Raises Unended after `timeout` seconds, also where it has ended and somebody keeps its output open.
    """
    end = time.monotonic() + timeout
    given, output, errors = (os.pipe() for _ in range(3))
    theirs = (given[0], output[1], errors[1])
    process = Process(words, cwd=cwd, env=os.environ if env is None else env, fds=theirs, engine=engine)
    for fd in theirs:
        os.close(fd)
    readers = [_Reader(fd) for fd in (output[0], errors[0])]
    threading.Thread(target=_write, args=(given[1], stdin), daemon=True).start()
    try:
        code = process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.show()
        process.kill()
        ended = False
    else:
        ended = all(reader.ends(end - time.monotonic()) for reader in readers)
    finally:
        process.close()
    if not ended:
        raise Unended(words, timeout, *(reader.text(1) for reader in readers))
    return subprocess.CompletedProcess(words, code, *(reader.text(0) for reader in readers))


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


def serve(path: str, engine: str) -> None:
    """Fork a process for each connection to `path` until our input ends; return in none of them."""
    if engine == TESTS:
        _serve_tests(path)
        return
    if engine == TENSORFLOW:
        from trainer.task import ENVIRONMENT

        os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"} | {n: os.environ.get(n, v) for n, v in ENVIRONMENT.items()}
        for used in _BY_TASKS:
            importlib.import_module(used)
        forked_python.draw_pictures()
    forked_python.take_over(os.environ)
    from launcher.cli.main import VERBS
    from launcher.cli.main import run as run_launcher

    for verb in VERBS.values():
        importlib.import_module(verb.module)
    for used_late in (*_LATE, *_LATER.get(engine, ())):
        importlib.import_module(used_late)
    gc.collect()
    gc.freeze()
    if not Path(path).parent.is_dir():  # the run has ended before anybody needed this process
        return
    request = _next_request(path)
    if request is not None:
        words, environment = request["words"], request["environment"]
        # AutoGraph leaves a file of each function where a process is killed: they go with our sockets, unless the caller wants them elsewhere.
        if words[:3] != _LAUNCHER and environment.get("TMPDIR") == os.environ.get("TMPDIR"):
            environment["TMPDIR"] = str(Path(path).parent)
        forked_python.become(words, environment, Path(request["cwd"]))
        if words[:3] == _LAUNCHER:  # all of it is here
            sys.argv = [str(ROOT / "launcher" / "__main__.py"), *words[3:]]
            forked_python.end_by(lambda: sys.exit(run_launcher(words[3:])))
        forked_python.run(words)


class _Collection:
    """Notes whether all that was to be collected was: no module failed, or left itself out."""

    is_complete = True

    def pytest_collectreport(self, report: Any) -> None:
        self.is_complete &= report.passed


def _serve_tests(path: str) -> None:
    """Collect the tests that the run of pytest is asked for, and fork test processes, which are given code to run as `python -c` is."""
    import pytest

    forked_python.note_start(os.environ)
    shared.directory = str(Path(path).parent)
    asked = json.loads(Path(shared.directory, ASKED).read_text())
    os.chdir(asked["directory"])
    collection = _Collection()
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        code = pytest.main([*asked["arguments"], "-n0", "--collect-only", "-qq"], plugins=[collection])
    if code != pytest.ExitCode.OK or not collection.is_complete:
        # A module that was imported in part would count as imported, and lose tests without a word: each test process imports it, and says why.
        kept = {sys.modules[__name__], forked_python}
        for name in [name for name, module in sys.modules.items() if module not in kept and not forked_python.of_others(module)]:
            del sys.modules[name]
    Path(shared.directory, SECONDS).write_text(str(sum(os.times()[:2])))
    context = sys.modules.get("tensorflow.python.eager.context")
    assert not (context and context._context), "a test module uses TensorFlow as it is imported: a fork has none of its threads"
    request = _next_request(path, end_with_caller=True)
    if request is not None:
        forked_python.become(request["words"], request["environment"], Path(request["cwd"]))
        sys.argv = ["-c"]
        forked_python.end_by(lambda: exec(request["words"][-1], {"__name__": "__main__"}))  # noqa: S102 - as `python -c` does


def _next_request(path: str, *, end_with_caller: bool = False) -> dict[str, Any] | None:
    """Return, in a process of its own, what each connection asks for; None once our input has ended.

    `end_with_caller` kills the process if it still runs when the caller has been gone for a while.
    """
    listening = socket.socket(socket.AF_UNIX)
    made = f"{path}.{os.getpid()}"
    listening.bind(made)
    listening.listen()
    Path(made).rename(path)  # perhaps over that of one that has died
    os.write(1, b"ready\n")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for those that we fork
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
            if end_with_caller:
                threading.Thread(target=_kill_late, args=(connection, pid), daemon=True).start()
            _, status = os.waitpid(pid, 0)
            with contextlib.suppress(BrokenPipeError):
                connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
            os._exit(0)
        connection.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
            os.close(fd)
        request = json.loads(text)
        assert isinstance(request, dict)
        if request["group"]:
            Path(request["group"]).write_text("0")  # of this process
        return request


def _kill_late(connection: socket.socket, pid: int) -> None:
    """Kill a process ten seconds after its caller has gone: xdist kills the caller where a test process hangs."""
    gone = select.poll()
    gone.register(connection, 0)  # reports that it was closed, and nothing else
    gone.poll()
    time.sleep(10)
    os.kill(pid, signal.SIGKILL)
