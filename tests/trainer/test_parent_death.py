"""Lifelines: the pipe, the wrapper around a user's program, and a parent that has already exited."""

import os
import subprocess
import sys
import threading
from pathlib import Path

from trainer import parent_death


def test_watch_calls_back_when_the_last_holder_of_the_pipe_has_closed_it() -> None:
    reading, writing = os.pipe()
    closed = threading.Event()
    thread = parent_death.watch(reading, closed.set)
    os.write(writing, b"x")
    assert not closed.wait(0.2)
    os.close(writing)
    assert closed.wait(5)
    thread.join(5)
    os.close(reading)


def die_with_parent(**variables: str) -> tuple[int, bytes]:
    """Return the exit code and the output of a program that binds its life to its parent's, with these variables."""
    program = "from trainer import parent_death; parent_death.die_with_parent(); print('lives')"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **variables}
    result = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, timeout=20, check=False)
    return result.returncode, result.stdout


def test_a_process_whose_parent_died_before_the_call_is_killed() -> None:
    assert die_with_parent(**{parent_death.PARENT_PID_VARIABLE: "1"}) == (-9, b"")


def test_a_process_without_a_registered_parent_lives() -> None:
    assert die_with_parent() == (0, b"lives\n")


def test_a_wrapped_program_is_the_same_process_and_sees_nothing_of_the_wrapper(tmp_path: Path) -> None:
    # Python's own module must be imported, not the file of that name in the working directory.
    (tmp_path / "signal.py").write_text("raise SystemExit('the wrong module')")
    script = f"echo $$ [${parent_death.PARENT_PID_VARIABLE}] [${parent_death.PARENT_PIPE_VARIABLE}]"
    with subprocess.Popen(
        parent_death.wrapped(["sh", "-c", script]),
        env={**os.environ, **parent_death.child_environment(), "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        output, _ = process.communicate(timeout=20)
    assert output == f"{process.pid} [] []\n"
    assert process.returncode == 0


def test_a_program_that_cannot_be_run_is_a_wrong_configuration() -> None:
    result = subprocess.run(parent_death.wrapped(["./no-such-program"]), capture_output=True, text=True, timeout=20, check=False)
    assert result.returncode == 2
    assert "'./no-such-program' cannot be run: No such file or directory" in result.stderr
