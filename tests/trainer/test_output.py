"""A program's output and events share a stream: none of it is lost, and neither is taken for the other."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.conftest import DEADLINE, DRIVER, REPOSITORY
from trainer.events import Event, escaped, parse, unescaped
from trainer.output import LineEscaper, Output

LOOKALIKE = b'{"event":"failed","time":1,"task":"chief","exit_code":2,"cause":"none","detail":"printed"}'
# Pieces that easily join to lines that look like events.
PIECES = st.lists(st.sampled_from([b" ", b"\n", b"\r", b"x", b'{"ev', b'ent":', b'{"event":', b'"a"}', b"\xff\x00"]), max_size=30)


@given(PIECES)
def test_lines_are_escaped_however_they_are_cut(pieces: list[bytes]) -> None:
    escaper = LineEscaper()
    written = b"".join(escaper.feed(piece) for piece in pieces) + escaper.release()
    whole = b"".join(pieces)
    assert written.split(b"\n") == [escaped(line) for line in whole.split(b"\n")]
    assert b"\n".join(map(unescaped, written.split(b"\n"))) == whole


@given(PIECES)
def test_an_event_stands_on_a_line_of_its_own(pieces: list[bytes]) -> None:
    escaper = LineEscaper()
    written = b"".join(escaper.feed(piece) for piece in pieces) + escaper.end_line()
    assert not written or written.endswith(b"\n") or not b"".join(pieces)
    # The program's next output then begins a line.
    assert escaper.feed(LOOKALIKE) == b" " + LOOKALIKE


def test_output_that_cannot_be_an_event_is_passed_on_at_once() -> None:
    escaper = LineEscaper()
    assert [escaper.feed(piece) for piece in (b"3/10 [=>", b"   ", b'{"event":', b"\n ", b'{"ev', b"ade", b"\n")] == [
        b"3/10 [=>", b"   ", b'{"event":', b"\n ", b"", b'{"evade', b"\n",
    ]  # fmt: skip


Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def supervised() -> Iterator[Start]:
    """Start programs under the parent, with their output in bytes."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*command: str, stdout: int | IO[bytes] = subprocess.PIPE, stderr: int | IO[bytes] = subprocess.STDOUT, **config: Any) -> Any:
        env = {**os.environ, "TRAINER_EVENTS": "json", "PYTHONPATH": str(REPOSITORY)}
        argv = [sys.executable, str(DRIVER), json.dumps({"command": command, "runs_built_in_trainer": False, **config})]
        started.append(subprocess.Popen(argv, cwd=REPOSITORY, env=env, stdout=stdout, stderr=stderr))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def split_output(output: bytes) -> tuple[list[Event], bytes]:
    """Return the events in a task's output, and its program's own output."""
    lines = output.split(b"\n")
    events = [parse(line.decode("utf-8", "replace")) for line in lines]
    assert [line for line, event in zip(lines, events, strict=True) if event is None and line.startswith(b'{"event":')] == []
    rest = [unescaped(line) for line, event in zip(lines, events, strict=True) if event is None]
    return [event for event in events if event], b"\n".join(rest)


def python(script: str) -> tuple[str, ...]:
    return (sys.executable, "-c", f"import os, sys, time\n{script}")


ODD_OUTPUT = b"\x00\xff\xfe\r50 %\r" + LOOKALIKE + b"\n" + LOOKALIKE + b"\n  " + LOOKALIKE + b"\n" + b"x" * 1_000_000 + LOOKALIKE + b"\r\n"


def test_every_byte_of_a_programs_output_arrives_and_none_of_its_lines_is_an_event(supervised: Start, tmp_path: Path) -> None:
    (tmp_path / "odd").write_bytes(ODD_OUTPUT + b"no end")
    out, _ = supervised("cat", str(tmp_path / "odd")).communicate(timeout=DEADLINE)
    events, written = split_output(out)
    assert [event["event"] for event in events] == ["started"]
    assert written == ODD_OUTPUT + b"no end"


def test_a_restart_is_reported_on_a_line_of_its_own_after_an_unfinished_line(supervised: Start) -> None:
    script = 'printf "\\r3/10 [=>...] - loss: 0.5"; [ "$TRAINER_ATTEMPT" = 2 ] || kill -9 $$'
    out, _ = supervised("sh", "-c", script).communicate(timeout=DEADLINE)
    events, written = split_output(out)
    assert [(event["event"], event.get("restarts")) for event in events] == [("started", None), ("restarting", 1), ("started", None)]
    assert written == b"\r3/10 [=>...] - loss: 0.5\n\r3/10 [=>...] - loss: 0.5"


def test_a_bar_without_a_line_end_is_seen_at_once(supervised: Start) -> None:
    process = supervised("sh", "-c", "printf 50; exec sleep 3600")
    assert process.stdout is not None
    process.stdout.readline()  # started
    assert process.stdout.read(2) == b"50"


def test_both_streams_of_a_program_stay_in_order(supervised: Start) -> None:
    lines = b"".join(b"%d\n" % number for number in range(2000))
    process = supervised(*python("for i in range(2000): os.write(1 + i % 2, b'%d\\n' % i)"), stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=DEADLINE)
    assert (split_output(out)[1], err) == (lines, b"")


def test_a_file_for_errors_stays_separate_and_its_traceback_is_reported(supervised: Start, tmp_path: Path) -> None:
    with (tmp_path / "errors").open("wb") as file:
        process = supervised(*python("print('out')\nraise ValueError('no rows')"), stderr=file, policy={"max_restarts": 0})
        out, _ = process.communicate(timeout=DEADLINE)
    events, written = split_output(out)
    assert written == b"out\n"
    assert events[-1]["detail"] == "ValueError: no rows"
    assert (tmp_path / "errors").read_bytes().endswith(b"ValueError: no rows\n")


def test_discarded_errors_are_not_in_the_output(supervised: Start) -> None:
    process = supervised(*python("print('out')\nprint('err', file=sys.stderr)"), stderr=subprocess.DEVNULL)
    output, _ = process.communicate(timeout=DEADLINE)
    assert b"out\n" in output
    assert b"err\n" not in output


def test_a_process_that_a_program_leaves_running_does_not_delay_the_tasks_end(supervised: Start) -> None:
    script = "if os.fork() == 0: os.setsid(); print('left', os.getpid(), flush=True); time.sleep(600)\ntime.sleep(0.5)"
    out, _ = supervised(*python(script)).communicate(timeout=DEADLINE)
    os.kill(int(split_output(out)[1].split()[1]), signal.SIGKILL)


def test_a_program_waits_for_a_slow_reader_and_its_task_still_obeys_a_signal(supervised: Start, tmp_path: Path) -> None:
    script = f"for _ in range(100): os.write(1, b'x' * 100_000)\nopen({str(tmp_path / 'done')!r}, 'w')"
    process = supervised(*python(script), timeouts={"sigterm_interval": 60.0})
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 143
    assert not (tmp_path / "done").exists()
    assert [event["event"] for event in split_output(out)[0]] == ["stopping"]


def test_a_program_continues_without_a_reader(supervised: Start, tmp_path: Path) -> None:
    process = supervised(*python(f"for _ in range(20): os.write(1, b'x' * 100_000)\nopen({str(tmp_path / 'done')!r}, 'w')"))
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(DEADLINE) == 0
    assert (tmp_path / "done").exists()


def test_a_program_that_never_pauses_does_not_hold_up_its_task_without_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = iter([b"x" * 64 * 1024] * 100)

    class Endless:
        def read(self) -> bytes:
            return next(reads)

    output = Output()
    monkeypatch.setattr(output, "_stdout_pipe", Endless())
    monkeypatch.setattr(output._stdout_sink, "_closed", True)
    output.take()
    assert next(reads), "StopIteration: it read all that the program wrote"


TRAINING = """
from trainer.events import Reporter
report = Reporter("chief")
for step in range(3):
    print(f"\\r{step}/3", end="", flush=True)
    report("progress", step=step, steps=3, metrics={})
os.write(1, b'{"event":"progress","step":9,"steps":9}')
sys.exit(0)
"""


def test_steps_are_reported_beside_the_output_of_the_users_code(supervised: Start) -> None:
    out, _ = supervised(*python(TRAINING), runs_built_in_trainer=True).communicate(timeout=DEADLINE)
    events, written = split_output(out)
    assert [event["step"] for event in events if event["event"] == "progress"] == [0, 1, 2]
    assert written.replace(b"\n", b"") == b'\r0/3\r1/3\r2/3{"event":"progress","step":9,"steps":9}'


def test_a_program_started_on_a_terminal_writes_to_it(supervised: Start) -> None:
    ours, theirs = pty.openpty()
    process = supervised(*python("print(os.isatty(1), os.isatty(2))"), stdout=theirs, stderr=theirs)
    seen = bytearray()
    while b"True True" not in seen:
        assert select.select([ours], [], [], DEADLINE)[0], f"the program has not written its line: {bytes(seen)!r}"
        seen += os.read(ours, 1000)
    assert process.wait(DEADLINE) == 0
    for fd in (ours, theirs):
        os.close(fd)


def test_lines_lost_on_a_full_disk_are_counted_once_there_is_room_again(supervised: Start, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "none", disk], check=False).returncode:
        pytest.skip("only root can mount a file system for the test")
    try:
        script = f"""
            print("before", flush=True)
            with open({str(disk / "filler")!r}, "wb", buffering=0) as filler:
                try:
                    while filler.write(bytes(4096)):
                        pass
                except OSError:
                    pass
            for number in range(3000):
                print("line", number, 50 * "x", flush=True)
            time.sleep(1)
            os.unlink({str(disk / "filler")!r})
            print("after", flush=True)
        """
        with (disk / "out").open("wb") as out:
            supervised(*python(textwrap.dedent(script)), stdout=out).wait(timeout=DEADLINE)
        lines = (disk / "out").read_bytes().splitlines()
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
    whole = [line for line in lines if line.startswith(b"line") and line.endswith(50 * b"x")]
    (note,) = [line for line in lines if b"could not be written here since" in line]
    assert b"before" in lines
    assert lines[-1] == b"after"
    assert int(note.split()[0]) + len(whole) == 3000
