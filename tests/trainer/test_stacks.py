"""The stacks of a task, requested from a real parent of real processes."""

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.stand_ins import shell
from tests.waiting import until
from trainer.stacks import short_path

PROGRAM = """
import os, threading, time

def in_a_thread():
    time.sleep(60)

def in_the_main_one():
    print("python", os.getpid(), flush=True)
    time.sleep(60)

threading.Thread(target=in_a_thread, daemon=True).start()
in_the_main_one()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


@pytest.fixture
def supervise(trainers: Any, tmp_path: Path) -> Callable[..., Any]:
    """Return a function that starts a parent which listens at `socket_path(tmp_path)`."""

    def start(*command: str, **options: Any) -> Any:
        return trainers.start_parent(
            *command, runs_built_in_trainer=False, env={"TRAINER_STACKS": str(socket_path(tmp_path)), **options.pop("env", {})}, **options
        )

    return start


def socket_path(directory: Path) -> Path:
    """Return the path of the parent's socket, which is longer than the address of a socket may be."""
    path = directory / ("d" * 60) / ("e" * 60) / "worker-0.sock"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def request_stacks(directory: Path) -> list[dict[str, Any]]:
    with socket.socket(socket.AF_UNIX) as connection, short_path(socket_path(directory)) as short:
        connection.settimeout(30)
        connection.connect(short)
        processes: list[dict[str, Any]] = json.loads(connection.makefile("rb").read())["processes"]
    return processes


def test_the_stacks_of_every_thread_of_an_unprepared_program_are_returned(supervise: Any, program: Path, tmp_path: Path) -> None:
    run = supervise(sys.executable, str(program))
    pid = int(run.line("python"))
    (process,) = request_stacks(tmp_path)
    assert process["pid"] == pid
    assert str(program) in process["command"]
    assert not process["problem"]
    assert "in in_the_main_one" in process["stacks"]
    assert "in in_a_thread" in process["stacks"]
    assert socket_path(tmp_path).stat().st_mode & 0o777 == 0o600
    run.send(signal.SIGTERM)
    run.code()
    assert not socket_path(tmp_path).exists()


def test_the_stacks_of_a_python_below_a_shell_and_of_its_fork_are_returned(supervise: Any, program: Path, tmp_path: Path) -> None:
    program.write_text("import os; os.fork()\n" + PROGRAM, encoding="utf-8")
    run = supervise(*shell(f"{sys.executable} {program}; true"))
    run.line("python")

    def both() -> bool:
        return sum("in in_the_main_one" in process["stacks"] for process in request_stacks(tmp_path)) >= 2

    until("the stacks of both", both, seen=lambda: request_stacks(tmp_path), every=0.1)


def test_simultaneous_requests_get_the_same_answer(supervise: Any, program: Path, tmp_path: Path) -> None:
    run = supervise(sys.executable, str(program))
    run.line("python")
    connections = [socket.socket(socket.AF_UNIX) for _ in range(5)]
    for connection in connections:
        connection.settimeout(30)
        with short_path(socket_path(tmp_path)) as short:
            connection.connect(short)
    answers = [json.loads(connection.makefile("rb").read())["processes"] for connection in connections]
    for connection in connections:
        connection.close()
    assert all(len(processes) == 1 and "in in_the_main_one" in processes[0]["stacks"] for processes in answers)


@pytest.mark.parametrize("options", [["-I"], ["-S"], ["-E"]])
def test_a_python_that_does_not_register_is_not_signalled(supervise: Any, program: Path, tmp_path: Path, options: list[str]) -> None:
    run = supervise(sys.executable, *options, str(program))
    pid = int(run.line("python"))
    assert request_stacks(tmp_path) == []
    os.kill(pid, 0)
    assert not run.events("restarting")


def test_a_program_that_has_replaced_a_python_is_not_signalled(supervise: Any, program: Path, tmp_path: Path) -> None:
    program.write_text("import os; print('python', os.getpid(), flush=True); os.execv('/bin/sleep', ['sleep', '60'])", encoding="utf-8")
    run = supervise(sys.executable, str(program))
    pid = int(run.line("python"))
    command_line = Path(f"/proc/{pid}/cmdline")
    until("another program", lambda: "sleep" in command_line.read_text(encoding="utf-8"), seen=command_line.read_text)
    (process,) = request_stacks(tmp_path)
    assert "runs another program now" in process["problem"]
    os.kill(pid, 0)
    assert not run.events("restarting")


def test_a_stopped_process_is_reported(supervise: Any, program: Path, tmp_path: Path) -> None:
    run = supervise(sys.executable, str(program))
    pid = int(run.line("python"))
    os.kill(pid, signal.SIGSTOP)
    try:
        until(
            "it to be reported",
            lambda: "is stopped by a signal" in request_stacks(tmp_path)[0]["problem"],
            seen=lambda: request_stacks(tmp_path),
        )
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_program_keeps_its_own_sitecustomize_and_its_path(supervise: Any, program: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("print('customized', flush=True)", encoding="utf-8")
    program.write_text(
        "import sys; print('path', sys.path[1], sys.modules['sitecustomize'].__file__, flush=True)" + PROGRAM, encoding="utf-8"
    )
    run = supervise(sys.executable, str(program), env={"PYTHONPATH": str(own)})
    run.line("customized")
    assert run.line("path") == f"{own} {own / 'sitecustomize.py'}"
    run.line("python")
    assert "in in_the_main_one" in request_stacks(tmp_path)[0]["stacks"]


def test_a_request_reaches_the_restarted_program_and_not_the_one_before(supervise: Any, program: Path, tmp_path: Path) -> None:
    run = supervise(sys.executable, str(program))
    first = int(run.line("python"))
    os.kill(first, signal.SIGKILL)
    second = run.event("started", 2)["pid"]
    run.line(f"python {second}")
    assert [process["pid"] for process in request_stacks(tmp_path)] == [second]
