"""Fixtures that start real trainer processes, read their output, and kill them at the end of the test."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO, cast

import pytest

from tests import forked
from tests.waiting import until
from trainer.events import Event, parse

REPOSITORY = Path(__file__).parents[2]
DRIVER = Path(__file__).with_name("drive_parent.py")
DEADLINE = 60.0  # seconds for each wait


@pytest.fixture(autouse=True)
def float32_afterwards() -> Iterator[None]:
    """Reset Keras's precision, which a run may change for the whole process."""
    yield
    if keras := sys.modules.get("keras"):
        keras.config.set_dtype_policy("float32")


class TrainerProcess:
    """One trainer process and its output so far."""

    def __init__(self, argv: list[str], env: dict[str, str], pass_fds: tuple[int, ...], preload: str) -> None:
        self.lines: list[str] = []
        self.process: subprocess.Popen[str] | forked.Process
        if preload:
            assert not pass_fds, "a forked process gets no more than stdin, stdout and stderr"
            self.process, self._output = forked.piped(argv, cwd=REPOSITORY, env=env, preload=preload)
        else:
            self.process = subprocess.Popen(
                argv, cwd=REPOSITORY, env=env, pass_fds=pass_fds, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            assert self.process.stdout is not None
            self._output = cast("TextIO", self.process.stdout)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._output:
            self.lines.append(line.rstrip("\n"))

    def events(self, kind: str) -> list[Event]:
        return [event for line in list(self.lines) if (event := parse(line)) and event["event"] == kind]

    def event(self, kind: str, number: int = 1) -> Event:
        """Wait for the `number`-th event of a kind."""
        events: list[Event] = until(f"{number} x {kind}", lambda: len(e := self.events(kind)) >= number and e, seen=lambda: self.lines)
        return events[number - 1]

    def line(self, start: str) -> str:
        """Wait for a line of output that begins with `start`; return the rest of the line."""

        def find() -> str:
            return next((line for line in list(self.lines) if line.startswith(start)), "")

        text: str = until(f"a line that starts with {start!r}", find, seen=lambda: self.lines)
        return text.removeprefix(start).strip()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def code(self, deadline: float = DEADLINE) -> int:
        """Wait for the end; return the exit code."""
        try:
            code = self.process.wait(deadline)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {deadline:g} s: {self.lines}")
        self._reader.join(5)
        return code

    def clean(self) -> None:
        self.process.kill()
        self.process.wait()
        for event in self.events("started"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(event["pid"], signal.SIGKILL)
        self._reader.join(5)
        self._output.close()


class Trainers:
    """Starts trainer processes."""

    def __init__(self) -> None:
        self.running: list[TrainerProcess] = []

    def start(
        self, argv: list[str], env: dict[str, str] | None = None, pass_fds: tuple[int, ...] = (), preload: str = ""
    ) -> TrainerProcess:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TRAINER_", "TF_CONFIG"))}
        running = TrainerProcess(
            argv, {**inherited, "TRAINER_EVENTS": "json", "PYTHONPATH": str(REPOSITORY), **(env or {})}, pass_fds, preload
        )
        self.running.append(running)
        return running

    def trainer(
        self, *arguments: str, env: dict[str, str] | None = None, pass_fds: tuple[int, ...] = (), preload: str = ""
    ) -> TrainerProcess:
        """Start the trainer command; `preload` forks it and its training process, see tests/forked.py."""
        return self.start([sys.executable, "-m", "trainer", *arguments], env, pass_fds, preload)

    def start_parent(
        self, *command: str, env: dict[str, str] | None = None, pass_fds: tuple[int, ...] = (), **config: Any
    ) -> TrainerProcess:
        """Start trainer.parent with a command in the training process's place."""
        return self.start([sys.executable, str(DRIVER), json.dumps({"command": command, **config})], env, pass_fds)


@pytest.fixture
def trainers() -> Iterator[Trainers]:
    started = Trainers()
    yield started
    for running in started.running:
        running.clean()


class Ports:
    """Loopback addresses that refuse connections until `listen` opens them."""

    def __init__(self) -> None:
        self._sockets: dict[str, socket.socket] = {}

    def address(self) -> str:
        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        self._sockets[address] = bound
        return address

    def listen(self, address: str) -> None:
        self._sockets[address].listen(100)
        threading.Thread(target=self._accept, args=(self._sockets[address],), daemon=True).start()

    def _accept(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                listening.accept()[0].close()

    def close(self, address: str) -> None:
        bound = self._sockets.pop(address)
        with contextlib.suppress(OSError):
            bound.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        bound.close()

    def close_all(self) -> None:
        for address in list(self._sockets):
            self.close(address)


@pytest.fixture
def ports() -> Iterator[Ports]:
    opened = Ports()
    yield opened
    opened.close_all()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Two ends of a pipe, closed at the end of the test."""
    reading, writing = os.pipe()
    yield reading, writing
    for fd in (reading, writing):
        try:
            os.close(fd)
        except OSError:
            continue
