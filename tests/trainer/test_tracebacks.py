"""The exception that ended a program is found in its output, whatever else it wrote."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from trainer import tracebacks


def raised(tmp_path: Path, source: str) -> tracebacks.Raised:
    """Return what is found in the output of a program."""
    program = tmp_path / "train.py"
    program.write_text(source)
    ended = subprocess.run([sys.executable, str(program)], capture_output=True, check=False)
    found = tracebacks.last(b"step 1\r step 2\n" + ended.stderr)
    assert ended.returncode == 1
    assert found is not None
    return found


@pytest.mark.parametrize(
    "source, line, number",
    [
        ("raise ValueError('no rows in /data')", "ValueError: no rows in /data", 1),
        ("def f():\n    return {}['loss']\nf()", "KeyError: 'loss'", 2),
        ("import json\njson.loads('{')", "JSONDecodeError: Expecting property name", 2),
        ("class MyError(Exception): ...\nraise MyError", "MyError", 2),
        ("raise ValueError('first\\n\\nsecond')", "ValueError: first", 1),
        ("open('/nowhere/file')", "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/file'", 1),
        (f"raise OSError({errno.EROFS}, 'Read-only file system')", f"OSError: [Errno {errno.EROFS}] Read-only file system", 1),
        ("x = (\n", "SyntaxError: '(' was never closed", 1),
        ("try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('b') from e", "ValueError: b", 4),
        (
            "class Odd:\n    def __del__(self): raise OSError('late')\nodd = Odd()\nraise ValueError('the cause')",
            "ValueError: the cause", 4,
        ),
    ],
    ids=["plain", "in a function", "in a library", "own class", "several lines", "no file", "read-only", "syntax", "chain", "ignored"],
)  # fmt: skip
def test_the_line_says_what_and_where_in_the_users_file(tmp_path: Path, source: str, line: str, number: int) -> None:
    found = raised(tmp_path, source)
    assert found.line.startswith(line)
    assert found.line.endswith(f" ({tmp_path}/train.py:{number})")
    assert found.fingerprint.startswith(f"{line.partition(':')[0]} at {tmp_path}/train.py:{number}, in ")


def test_it_is_found_behind_a_line_that_the_program_has_not_finished() -> None:
    found = tracebacks.last(b'3/10 [=>Traceback (most recent call last):\n  File "/code/a.py", line 3, in f\n    f()\nKeyError: 1\n')
    assert found == tracebacks.Raised("KeyError: 1 (/code/a.py:3)", "KeyError at /code/a.py:3, in /code/a.py:3")


def test_the_same_place_is_the_same_whatever_the_message_says(tmp_path: Path) -> None:
    found = {raised(tmp_path, f"raise ValueError({message!r})").fingerprint for message in ("step 1", "step 2 of /tmp/ab12")}
    assert len(found) == 1


SURVIVED = """Traceback (most recent call last):
  File "/code/train.py", line 3, in <module>
    import wandb
ModuleNotFoundError: No module named 'wandb'
going on without it
"""


def test_a_traceback_that_the_program_went_on_from_is_the_same_only_with_the_same_after_it() -> None:
    def same(after: str) -> str:
        found = tracebacks.last((SURVIVED + after).encode())
        assert found is not None
        return found.fingerprint

    log = "2026-11-23 10:0{}:00.123456: E external/local_xla/xla.cc:1] no GPU\n"
    assert same("step 1 loss 0.3\ngave up\n") != same("step 1 loss 0.2\ngave up\n")
    assert same(log.format(1) + "gave up\n") == same(log.format(2) + "gave up\n")


@pytest.mark.parametrize(
    "source",
    [
        "raise ConnectionResetError(104, 'reset')",
        "import socket; socket.create_connection(('127.0.0.1', 1))",
        "raise TimeoutError",
        "raise MemoryError",
        "class UnavailableError(Exception): ...\nraise UnavailableError('ps-0 is gone')",
        "raise RuntimeError('{{node x}} DEADLINE_EXCEEDED: no answer')",
        "try:\n    raise ConnectionResetError\nexcept OSError as e:\n    raise RuntimeError('could not fetch') from e",
    ],
)
def test_what_may_pass_is_no_failure_of_the_programs_own(tmp_path: Path, source: str) -> None:
    found = raised(tmp_path, source)
    assert found.fingerprint == ""
    assert found.line


@pytest.mark.parametrize("output", [b"", b"killed", b"Traceback (most recent call last):", b'  File "train.py", line 3'])
def test_output_without_a_whole_traceback_tells_nothing(output: bytes) -> None:
    assert tracebacks.last(output) is None
