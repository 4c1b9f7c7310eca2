"""Fork servers: Python processes that have imported the launcher's command line, TensorFlow or the tests, and from which tests fork others.

Each forked process has the directory, environment, input and output that it is given. A command of the launcher takes 0.05 s of a core
instead of 0.35, because Python's start and the imports are saved. A process that trains takes four seconds of a core less, and so does each
task that a launcher starts (`forked_python.py`). Python's own start is not tested this way: tests/launcher/cli starts the real command for that,
and to test signals and terminals; tests/trainer starts the real command for most tasks.
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

LONGEST = 1200.0  # seconds for one command; docs/testing.md, "No test fails by chance"
ROOT = Path(__file__).resolve().parents[1]
TENSORFLOW, DOCKER, KUBERNETES, TESTS = "tensorflow", "docker", "kubernetes", "tests"
# Installed packages that tasks import; they import the rest of TensorFlow and Keras.
_TASK_IMPORTS = (TENSORFLOW, "keras", "numpy", "pydantic")
# Modules that verbs import lazily: all of them, and those for runs in containers or pods.
_LAZY_IMPORTS = ("launcher.backend.local.backend", "launcher.cli.live", "launcher.cli.planning", "launcher.cli.results", "yaml")
_LAZY_IMPORTS_OF = {
    DOCKER: ("launcher.backend.docker.backend", "launcher.render.compose"),
    KUBERNETES: ("launcher.backend.kubernetes.backend", "launcher.render.kubernetes.jobs"),
}
_SERVER = "import sys; sys.path[0] = sys.argv[1]; from tests import forked; forked.serve(*sys.argv[2:4])"
_LAUNCHER = [sys.executable, "-m", "launcher"]
# Files beside the sockets: the arguments of pytest, and the processor seconds that the collection took.
PYTEST_ARGUMENTS, COLLECTION_SECONDS = "arguments", "seconds"


# Prefixes of variables that a developer may have set, and that tests must not see.
CLEARED_PREFIXES = (
    "TF_CONFIG",
    "TRAINER_",
    "LAUNCHER_",
    "RUN_DIR",
    "RUN_NAME",
    "GRPC_",
    "TF_NUM_",
    "OMP_NUM_THREADS",
    "KERAS_BACKEND",
    "COLUMNS",
)

# Variables that TensorFlow reads when it is imported; each test sets them for its processes.
IMPORT_ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "2"}

group = ""  # the cgroup.procs file of the cgroup that `pytest --costs` measures, if it has one


class _ForkServers:
    """The fork servers of one run of pytest. `preload`, such as TENSORFLOW, says what a server has imported."""

    directory = ""  # of their sockets

    def create(self) -> str:
        """Create the directory. The servers end with this process, because only it keeps a pipe open."""
        self.directory = tempfile.mkdtemp(prefix="launcher-")
        atexit.register(shutil.rmtree, self.directory, ignore_errors=True)
        os.mkfifo(f"{self.directory}/alive")
        os.open(f"{self.directory}/alive", os.O_RDWR)
        return self.directory

    def connect(self, preload: str) -> socket.socket:
        """Return a connection to a server. Starts the server if no test process has started it, or if it has died."""
        with self._locked(preload) as path:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(path)
            except (FileNotFoundError, ConnectionRefusedError):
                self._start(path, preload)
                connection.connect(path)
        return connection

    def prepare(self, preload: str) -> None:
        """Start a server early, unless it was started. Errors are suppressed: `connect` raises them again."""
        with contextlib.suppress(OSError, AssertionError), self._locked(preload) as path:
            if not Path(path).exists():
                self._start(path, preload)

    @contextlib.contextmanager
    def _locked(self, preload: str) -> Iterator[str]:
        path = f"{self.directory or self.create()}/{preload or 'launcher'}"
        with Path(f"{path}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield path

    def _start(self, path: str, preload: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(CLEARED_PREFIXES)} | IMPORT_ENVIRONMENT
        command, environment = forked_python.padded([sys.executable, "-c", _SERVER, str(ROOT), path, preload], environment)
        alive = os.open(f"{self.directory}/alive", os.O_RDONLY | os.O_NONBLOCK)
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=alive, stdout=subprocess.PIPE)
        os.close(alive)
        assert process.stdout is not None
        with process.stdout as output:
            assert output.readline() == b"ready\n", f"the fork server did not start: {command}"
        process.returncode = 0  # Popen must not wait for it: it ends with the run of pytest


shared = _ForkServers()


class Process:
    """A forked process with the interface of subprocess.Popen, for `python FILE` or `python -m MODULE` of this repository, or `python -c`."""

    def __init__(self, argv: list[str], *, cwd: Path, env: Mapping[str, str], fds: tuple[int, int, int], preload: str) -> None:
        self.args, self.returncode = argv, None
        self._answer = b""
        self._connection = shared.connect(preload)
        request = {"argv": argv, "cwd": str(cwd), "environment": dict(env), "group": group}
        socket.send_fds(self._connection, [json.dumps(request).encode()], fds)
        self._connection.shutdown(socket.SHUT_WR)
        self.pid = self._number(60)
        assert self.pid is not None, "the fork server does not answer"

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
        """Stop waiting for its end."""
        self._connection.close()

    def wait(self, timeout: float = LONGEST) -> int:
        """Return the exit code; -n if signal n ended it. Raises TimeoutExpired after `timeout` seconds."""
        if self.returncode is None:
            select.select([self._connection], [], [], max(0, timeout))
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it may just have ended
                os.kill(self.pid or 0, number)

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def show(self) -> None:
        """Let it and its forked children write the stacks of their threads to stderr. Other children would die of the signal."""
        children = subprocess.run(["pgrep", "-P", str(self.pid)], capture_output=True, text=True, check=False).stdout.split()
        for pid in (self.pid or 0, *map(int, children)):
            with contextlib.suppress(OSError):  # it has ended
                if pid == self.pid or _catches(pid, signal.SIGUSR2):
                    os.kill(pid, signal.SIGUSR2)
        time.sleep(1)

    def _number(self, timeout: float) -> int | None:
        """Return the next number that the server sends; None if it does not come within `timeout` seconds."""
        while b"\n" not in self._answer:
            if not select.select([self._connection], [], [], timeout)[0]:
                return None
            part = self._connection.recv(64)
            assert part, f"the fork server has died; {self.args}"
            self._answer += part
        number, _, self._answer = self._answer.partition(b"\n")
        return int(number)


def _catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal (proc_pid_status(5), SigCgt). Raises OSError if it, or /proc, does not exist."""
    caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def piped(argv: list[str], *, cwd: Path, env: Mapping[str, str], preload: str, errors: int | None = None) -> tuple[Process, TextIO]:
    """Start a command; return the process and its stdout, with stderr unless that goes to the descriptor `errors`."""
    reading, writing = os.pipe()
    process = Process(argv, cwd=cwd, env=env, fds=(0, writing, writing if errors is None else errors), preload=preload)
    os.close(writing)
    return process, os.fdopen(reading, encoding="utf-8")


class TimeoutWithOutput(subprocess.TimeoutExpired):
    """A command that has not ended in time. The message has the end of its output, with the stacks of its threads if it still ran."""

    def __str__(self) -> str:
        return f"{super().__str__()}; its last output:\n{(self.output + self.stderr)[-6000:]}"


def launcher(
    *arguments: str, cwd: Path = ROOT, env: Mapping[str, str] | None = None, stdin: str = "", timeout: float = LONGEST, preload: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Run a command line of the launcher to its end; `preload` is DOCKER or KUBERNETES for runs there, TENSORFLOW if local tasks train."""
    return run([*_LAUNCHER, *arguments], cwd=cwd, env=env, stdin=stdin, timeout=timeout, preload=preload)


def run(
    argv: list[str], *, cwd: Path = ROOT, env: Mapping[str, str] | None = None, stdin: str = "", timeout: float = LONGEST, preload: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, as subprocess.run does.

    Raises TimeoutWithOutput after `timeout` seconds, also if the command has ended and another process keeps its output open.
    """
    end = time.monotonic() + timeout
    input_, output, errors = (os.pipe() for _ in range(3))
    theirs = (input_[0], output[1], errors[1])
    process = Process(argv, cwd=cwd, env=os.environ if env is None else env, fds=theirs, preload=preload)
    for fd in theirs:
        os.close(fd)
    readers = [_Reader(fd) for fd in (output[0], errors[0])]
    threading.Thread(target=_write, args=(input_[1], stdin), daemon=True).start()
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
        raise TimeoutWithOutput(argv, timeout, *(reader.text(1) for reader in readers))
    return subprocess.CompletedProcess(argv, code, *(reader.text(0) for reader in readers))


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
        """Return all output; after `timeout` seconds the part that has come, if the other end is still open."""
        self.ends(timeout)
        return b"".join(self._parts).decode()


def serve(path: str, preload: str) -> None:
    """Fork a process for each connection to `path` until stdin ends; does not return in the forked processes."""
    if preload == TESTS:
        _serve_tests(path)
        return
    if preload == TENSORFLOW:
        from trainer.task import ENVIRONMENT_DEFAULTS

        os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"} | {
            n: os.environ.get(n, v) for n, v in ENVIRONMENT_DEFAULTS.items()
        }
        for name in _TASK_IMPORTS:
            importlib.import_module(name)
        forked_python.draw_pictures()
    forked_python.patch_subprocess(os.environ)
    from launcher.cli.main import VERBS
    from launcher.cli.main import run as run_launcher

    for verb in VERBS.values():
        importlib.import_module(verb.module)
    for name in (*_LAZY_IMPORTS, *_LAZY_IMPORTS_OF.get(preload, ())):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    if not Path(path).parent.is_dir():  # the run of pytest has ended before it needed this server
        return
    request = _next_request(path)
    if request is not None:
        argv, environment = request["argv"], request["environment"]
        # A killed process leaves AutoGraph's files in TMPDIR: by default that is the directory of the sockets, which is removed.
        if argv[:3] != _LAUNCHER and environment.get("TMPDIR") == os.environ.get("TMPDIR"):
            environment["TMPDIR"] = str(Path(path).parent)
        forked_python.become(argv, environment, Path(request["cwd"]))
        if argv[:3] == _LAUNCHER:  # it is imported already
            sys.argv = [str(ROOT / "launcher" / "__main__.py"), *argv[3:]]
            forked_python.run_and_exit(lambda: sys.exit(run_launcher(argv[3:])))
        forked_python.run(argv)


class _Collection:
    """Notes whether the collection is complete: no module failed or skipped itself."""

    is_complete = True

    def pytest_collectreport(self, report: Any) -> None:
        self.is_complete &= report.passed


def _serve_tests(path: str) -> None:
    """Collect the tests that pytest's arguments select, and fork test processes, which run code as `python -c` does."""
    import pytest

    forked_python.save_start_state(os.environ)
    shared.directory = str(Path(path).parent)
    invocation = json.loads(Path(shared.directory, PYTEST_ARGUMENTS).read_text())
    os.chdir(invocation["directory"])
    collection = _Collection()
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        code = pytest.main([*invocation["arguments"], "-n0", "--collect-only", "-qq"], plugins=[collection])
    if code != pytest.ExitCode.OK or not collection.is_complete:
        # A partly imported module would count as imported, and silently lose tests: so each test process imports it again, and reports the error.
        own = {sys.modules[__name__], forked_python}
        for name in [name for name, module in sys.modules.items() if module not in own and not forked_python.is_installed(module)]:
            del sys.modules[name]
    Path(shared.directory, COLLECTION_SECONDS).write_text(str(sum(os.times()[:2])))
    context = sys.modules.get("tensorflow.python.eager.context")
    assert not (context and context._context), "a test module uses TensorFlow at its import: forked processes lack TensorFlow's threads"
    request = _next_request(path, end_with_caller=True)
    if request is not None:
        forked_python.become(request["argv"], request["environment"], Path(request["cwd"]))
        sys.argv = ["-c"]
        forked_python.run_and_exit(lambda: exec(request["argv"][-1], {"__name__": "__main__"}))  # noqa: S102 - as `python -c` does


def _next_request(path: str, *, end_with_caller: bool = False) -> dict[str, Any] | None:
    """Fork for each connection, and return its request in the forked process; in this one return None when stdin has ended.

    `end_with_caller` kills the forked process if it still runs some time after its caller has ended.
    """
    listening = socket.socket(socket.AF_UNIX)
    temporary = f"{path}.{os.getpid()}"
    listening.bind(temporary)
    listening.listen()
    Path(temporary).rename(path)  # may replace the socket of a server that has died
    os.write(1, b"ready\n")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children that only wait for a forked process need not be reaped
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only forked processes handle it
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
            Path(request["group"]).write_text("0")  # 0 is this process
        return request


def _kill_late(connection: socket.socket, pid: int) -> None:
    """Kill a process ten seconds after its caller has ended: xdist kills the caller if a test process hangs."""
    poll = select.poll()
    poll.register(connection, 0)  # reports only that the connection was closed
    poll.poll()
    time.sleep(10)
    os.kill(pid, signal.SIGKILL)
