"""The exception that ended a program is found in its output, whatever else it wrote."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.runs.reasons import shortened
from trainer import tracebacks


def raised(tmp_path: Path, source: str) -> tracebacks.ExceptionSummary:
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
    assert found == tracebacks.ExceptionSummary("KeyError: 1 (/code/a.py:3)", "KeyError at /code/a.py:3, in /code/a.py:3")


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


FIT = """Traceback (most recent call last):
  File "/code/train.py", line 27, in <module>
    model.fit(data)
  File "/venv/lib/python3.11/site-packages/keras/src/utils/traceback_utils.py", line 122, in error_handler
    raise e.with_traceback(filtered_tb) from None
{}
"""
LOCKED = """BlockingIOError: [Errno 11] Unable to synchronously create file (unable to lock file, errno = 11, error message = 'Resource temporarily \
unavailable')"""
COMPILED = """InvalidArgumentError: Trying to access resource dense/kernel/2 (defined @ /venv/core.py:43) located in device \
/job:worker/replica:0/task:0/device:GPU:0 from device /job:worker/replica:0/task:0/device:CPU:0"""
MIXED = """InvalidArgumentError: Collective ops is aborted by: Device /job:worker/replica:0/task:0/device:GPU:0 is joining a group with \
incompatible device type CPU (group_key=1)"""


@pytest.mark.parametrize(
    "error, remedy",
    [
        (
            "ValueError: Attempt to convert a value (PerReplica:{\n  0: <tf.Tensor: numpy=array([[ 0.5441101 ]])>\n}) with an unsupported type to a Tensor.",
            "the model outside it",
        ),
        ("ValueError: Invalid reduction dimension 0 for input with 0 dimensions. for '{{node Sum_3}} = Sum[...]'", "metrics of shape [1]"),
        ("RuntimeError: Mixing different tf.distribute.Strategy objects: <object at 0x7f55> is not <object at 0x7f56>", "fit inside"),
        (LOCKED, "a path of its own"),
        (COMPILED, "jit_compile=False"),
        (MIXED, "give all workers the same `gpus`"),
    ],
)
def test_what_keras_says_of_several_workers_comes_with_a_remedy_that_a_backend_quotes_whole(error: str, remedy: str) -> None:
    found = tracebacks.last(FIT.format(error).encode())
    assert found is not None
    line, _, words = found.line.partition(" (/code/train.py:27); ")
    assert line == error.splitlines()[0]
    assert remedy in words
    assert "docs/keras.md" in words
    assert words in shortened(found.line)
    other = tracebacks.last(FIT.format(error.replace("0.5441101", "1.7964")).encode())
    assert other is not None
    assert found.fingerprint == other.fingerprint != ""  # values differ from attempt to attempt; the mistake stays


def test_a_program_that_finds_no_run_directory_is_told_of_the_field() -> None:
    found = tracebacks.last(FIT.format("KeyError: 'RUN_DIR'").encode())
    assert found is not None
    assert "`storage: {}`" in found.line


def test_a_lock_that_is_no_keras_file_comes_with_no_remedy() -> None:
    found = tracebacks.last(FIT.format("BlockingIOError: [Errno 11] Resource temporarily unavailable").encode())
    assert found == tracebacks.ExceptionSummary("BlockingIOError: [Errno 11] Resource temporarily unavailable (/code/train.py:27)", "")


IN_A_GRAPH = """{} Graph execution error:

Detected at node Log defined at (most recent call last):
  File "/code/train.py", line 27, in <module>

  File "/code/train.py", line 9, in loss

{}
\t [[{{{{node Log}}}}]] [Op:__inference_train_function_1169]
"""


def test_frames_in_a_message_of_tensorflow_are_not_taken_for_a_traceback() -> None:
    wrong = FIT.format(IN_A_GRAPH.format("tensorflow.python.framework.errors_impl.InvalidArgumentError:", "assertion failed: [the loss]"))
    found = tracebacks.last(wrong.encode())
    assert found is not None
    assert found.line == "InvalidArgumentError: assertion failed: [the loss] (/code/train.py:27)"
    assert found.fingerprint
    lost = FIT.format(IN_A_GRAPH.format("tensorflow.python.framework.errors_impl.AbortedError:", "Collective ops is aborted by: x"))
    found = tracebacks.last(lost.encode())
    assert found == tracebacks.ExceptionSummary("AbortedError: Collective ops is aborted by: x (/code/train.py:27)", "")


def test_a_function_that_autograph_has_made_is_the_same_whatever_its_file_is_called() -> None:
    def same(name: str) -> str:
        frame = f'  File "/tmp/__autograph_generated_file{name}.py", line 13, in tf__loss\n'
        found = tracebacks.last(FIT.format(f"{frame}ValueError: in user code:\n\n    ValueError: no loss").encode())
        assert found is not None
        assert found.line == "ValueError: no loss (/code/train.py:27)"
        return found.fingerprint

    assert same("tlgubwj1") == same("ysnn8oov")


# As TensorFlow 2.15 writes an error of a session.
SESSION = """\
Traceback (most recent call last):
  File "/opt/app/train_ps.py", line 26, in <module>
    saver.save(session, path)
tensorflow.python.framework.errors_impl.NotFoundError: Graph execution error:

Detected at node 'save/SaveV2' defined at (most recent call last):
    File "/opt/app/train_ps.py", line 20, in <module>
Node: 'save/SaveV2'
Detected at node 'save/SaveV2' defined at (most recent call last):
    File "/opt/app/train_ps.py", line 20, in <module>
Node: 'save/SaveV2'
{}From /job:worker/replica:0/task:0:
/models/ps/model.ckpt-0_temp; No such file or directory
\t [[{{{{node save/SaveV2}}}}]]
Additional GRPC error information from remote target /job:ps/replica:0/task:0:
:{{"created":"@{}","description":"Error received from peer","grpc_status":5}}

Original stack trace for 'save/SaveV2':
  File "/opt/app/train_ps.py", line 20, in <module>
    saver = tf.train.Saver()
"""


def test_an_error_of_a_session_is_told_by_what_it_says_and_is_the_same_whenever_it_is() -> None:
    first, second = (tracebacks.last(SESSION.format("", time).encode()) for time in ("1795564701.018273", "1795564703.4"))
    several = tracebacks.last(SESSION.format("=====================\nNOT_FOUND: ", "1795564701.018273").encode())
    assert first is not None
    assert several is not None
    assert first == second
    assert several.line == first.line
    assert first.line == "NotFoundError: /models/ps/model.ckpt-0_temp; No such file or directory (/opt/app/train_ps.py:26)"
    assert first.fingerprint
