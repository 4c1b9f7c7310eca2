"""The stacks of a task, asked of a real parent of real processes."""

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
    """Start a parent that listens at `place(tmp_path)`."""

    def start(*command: str, **chosen: Any) -> Any:
        return trainers.start_parent(
            *command, built_in=False, env={"TRAINER_STACKS": str(place(tmp_path)), **chosen.pop("env", {})}, **chosen
        )

    return start


def place(directory: Path) -> Path:
    """Return where the parent listens: below so many directories that the path is longer than an address of a socket may be."""
    path = directory / ("d" * 60) / ("e" * 60) / "worker-0.sock"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def ask(directory: Path) -> list[dict[str, Any]]:
    with socket.socket(socket.AF_UNIX) as connection, short_path(place(directory)) as short:
        connection.settimeout(30)
        connection.connect(short)
        found: list[dict[str, Any]] = json.loads(connection.makefile("rb").read())["processes"]
    return found


def test_every_thread_of_a_program_that_knows_nothing_of_it(supervise: Any, program: Path, tmp_path: Path) -> None:
    run = supervise(sys.executable, str(program))
    pid = int(run.line("python"))
    (found,) = ask(tmp_path)
    assert found["pid"] == pid
    assert str(program) in found["command"]
    assert not found["problem"]
    assert "in in_the_main_one" in found["stacks"]
    assert "in in_a_thread" in found["stacks"]
    assert place(tmp_path).stat().st_mode & 0o777 == 0o600
    run.send(signal.SIGTERM)
    run.code()
    assert not place(tmp_path).exists()


def test_a_python_below_a_shell_and_what_it_forks(supervise: Any, program: Path, tmp_path: Path) -> None:
    program.write_text("import os; os.fork()\n" + PROGRAM, encoding="utf-8")
    run = supervise(*shell(f"{sys.executable} {program}; true"))
    run.line("python")

    def both() -> bool:
        return sum("in in_the_main_one" in one["stacks"] for one in ask(tmp_path)) >= 2

    until("the stacks of both", both, seen=lambda: ask(tmp_path), every=0.1)


def test_all_who_ask_at_the_same_time_get_the_same(supervise: Any, program: Path, tmp_path: Path) -> None:
    run = supervise(sys.executable, str(program))
    run.line("python")
    connections = [socket.socket(socket.AF_UNIX) for _ in range(5)]
    for connection in connections:
        connection.settimeout(30)
        with short_path(place(tmp_path)) as short:
            connection.connect(short)
    answers = [json.loads(connection.makefile("rb").read())["processes"] for connection in connections]
    for connection in connections:
        connection.close()
    assert all(len(found) == 1 and "in in_the_main_one" in found[0]["stacks"] for found in answers)


@pytest.mark.parametrize("how", [["-I"], ["-S"], ["-E"]])
def test_a_python_that_does_not_register_is_not_signalled(supervise: Any, program: Path, tmp_path: Path, how: list[str]) -> None:
    run = supervise(sys.executable, *how, str(program))
    pid = int(run.line("python"))
    assert ask(tmp_path) == []
    os.kill(pid, 0)
    assert not run.events("restarting")


def test_a_program_that_has_taken_the_place_of_a_python_is_not_signalled(supervise: Any, program: Path, tmp_path: Path) -> None:
    program.write_text("import os; print('python', os.getpid(), flush=True); os.execv('/bin/sleep', ['sleep', '60'])", encoding="utf-8")
    run = supervise(sys.executable, str(program))
    pid = int(run.line("python"))
    words = Path(f"/proc/{pid}/cmdline")
    until("another program", lambda: "sleep" in words.read_text(encoding="utf-8"), seen=words.read_text)
    (found,) = ask(tmp_path)
    assert "runs another program now" in found["problem"]
    os.kill(pid, 0)
    assert not run.events("restarting")


def test_a_stopped_process_is_named(supervise: Any, program: Path, tmp_path: Path) -> None:
    run = supervise(sys.executable, str(program))
    pid = int(run.line("python"))
    os.kill(pid, signal.SIGSTOP)
    try:
        until("it to be named", lambda: "is stopped by a signal" in ask(tmp_path)[0]["problem"], seen=lambda: ask(tmp_path))
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
    assert "in in_the_main_one" in ask(tmp_path)[0]["stacks"]


def test_a_restarted_program_is_asked_and_not_the_one_before(supervise: Any, program: Path, tmp_path: Path) -> None:
    run = supervise(sys.executable, str(program))
    first = int(run.line("python"))
    os.kill(first, signal.SIGKILL)
    second = run.event("started", 2)["pid"]
    run.line(f"python {second}")
    assert [one["pid"] for one in ask(tmp_path)] == [second]
