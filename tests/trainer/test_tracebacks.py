"""The exception that ended a program is found in its output, whatever else the output contains."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.runs.reasons import shortened
from trainer import tracebacks


def summary_of(tmp_path: Path, source: str) -> tracebacks.ExceptionSummary:
    """Return the summary of the exception in the output of a program."""
    program = tmp_path / "train.py"
    program.write_text(source)
    result = subprocess.run([sys.executable, str(program)], capture_output=True, check=False)
    summary = tracebacks.last(b"step 1\r step 2\n" + result.stderr)
    assert result.returncode == 1
    assert summary is not None
    return summary


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
def test_the_line_names_the_error_and_its_place_in_the_users_file(tmp_path: Path, source: str, line: str, number: int) -> None:
    summary = summary_of(tmp_path, source)
    assert summary.line.startswith(line)
    assert summary.line.endswith(f" ({tmp_path}/train.py:{number})")
    assert summary.fingerprint.startswith(f"{line.partition(':')[0]} at {tmp_path}/train.py:{number}, in ")


def test_a_traceback_is_found_behind_an_unfinished_line() -> None:
    summary = tracebacks.last(b'3/10 [=>Traceback (most recent call last):\n  File "/code/a.py", line 3, in f\n    f()\nKeyError: 1\n')
    assert summary == tracebacks.ExceptionSummary("KeyError: 1 (/code/a.py:3)", "KeyError at /code/a.py:3, in /code/a.py:3")


def test_the_same_place_has_the_same_fingerprint_whatever_the_message(tmp_path: Path) -> None:
    fingerprints = {summary_of(tmp_path, f"raise ValueError({message!r})").fingerprint for message in ("step 1", "step 2 of /tmp/ab12")}
    assert len(fingerprints) == 1


SURVIVED = """Traceback (most recent call last):
  File "/code/train.py", line 3, in <module>
    import wandb
ModuleNotFoundError: No module named 'wandb'
going on without it
"""


def test_a_survived_traceback_has_the_same_fingerprint_only_with_the_same_later_output() -> None:
    def fingerprint(later_output: str) -> str:
        summary = tracebacks.last((SURVIVED + later_output).encode())
        assert summary is not None
        return summary.fingerprint

    log = "2026-11-23 10:0{}:00.123456: E external/local_xla/xla.cc:1] no GPU\n"
    assert fingerprint("step 1 loss 0.3\ngave up\n") != fingerprint("step 1 loss 0.2\ngave up\n")
    assert fingerprint(log.format(1) + "gave up\n") == fingerprint(log.format(2) + "gave up\n")


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
def test_a_transient_error_has_no_fingerprint(tmp_path: Path, source: str) -> None:
    summary = summary_of(tmp_path, source)
    assert summary.fingerprint == ""
    assert summary.line


@pytest.mark.parametrize("output", [b"", b"killed", b"Traceback (most recent call last):", b'  File "train.py", line 3'])
def test_output_without_a_whole_traceback_has_no_summary(output: bytes) -> None:
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
def test_keras_errors_of_several_workers_have_a_remedy_that_a_backend_quotes_whole(error: str, remedy: str) -> None:
    summary = tracebacks.last(FIT.format(error).encode())
    assert summary is not None
    line, _, advice = summary.line.partition(" (/code/train.py:27); ")
    assert line == error.splitlines()[0]
    assert remedy in advice
    assert "docs/keras.md" in advice
    assert advice in shortened(summary.line)
    other = tracebacks.last(FIT.format(error.replace("0.5441101", "1.7964")).encode())
    assert other is not None
    assert summary.fingerprint == other.fingerprint != ""  # values differ from attempt to attempt; the mistake stays


def test_a_missing_run_directory_names_the_field_that_adds_it() -> None:
    summary = tracebacks.last(FIT.format("KeyError: 'RUN_DIR'").encode())
    assert summary is not None
    assert "`storage: {}`" in summary.line


def test_a_lock_that_is_no_keras_file_has_no_remedy() -> None:
    summary = tracebacks.last(FIT.format("BlockingIOError: [Errno 11] Resource temporarily unavailable").encode())
    assert summary == tracebacks.ExceptionSummary("BlockingIOError: [Errno 11] Resource temporarily unavailable (/code/train.py:27)", "")


IN_A_GRAPH = """{} Graph execution error:

Detected at node Log defined at (most recent call last):
  File "/code/train.py", line 27, in <module>

  File "/code/train.py", line 9, in loss

{}
\t [[{{{{node Log}}}}]] [Op:__inference_train_function_1169]
"""


def test_frames_in_a_message_of_tensorflow_are_not_taken_for_a_traceback() -> None:
    wrong = FIT.format(IN_A_GRAPH.format("tensorflow.python.framework.errors_impl.InvalidArgumentError:", "assertion failed: [the loss]"))
    summary = tracebacks.last(wrong.encode())
    assert summary is not None
    assert summary.line == "InvalidArgumentError: assertion failed: [the loss] (/code/train.py:27)"
    assert summary.fingerprint
    lost = FIT.format(IN_A_GRAPH.format("tensorflow.python.framework.errors_impl.AbortedError:", "Collective ops is aborted by: x"))
    summary = tracebacks.last(lost.encode())
    assert summary == tracebacks.ExceptionSummary("AbortedError: Collective ops is aborted by: x (/code/train.py:27)", "")


def test_a_function_made_by_autograph_has_the_same_fingerprint_whatever_its_files_name() -> None:
    def fingerprint(name: str) -> str:
        frame = f'  File "/tmp/__autograph_generated_file{name}.py", line 13, in tf__loss\n'
        summary = tracebacks.last(FIT.format(f"{frame}ValueError: in user code:\n\n    ValueError: no loss").encode())
        assert summary is not None
        assert summary.line == "ValueError: no loss (/code/train.py:27)"
        return summary.fingerprint

    assert fingerprint("tlgubwj1") == fingerprint("ysnn8oov")


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


def test_an_error_of_a_session_shows_its_message_and_is_the_same_at_any_time() -> None:
    first, second = (tracebacks.last(SESSION.format("", time).encode()) for time in ("1795564701.018273", "1795564703.4"))
    several = tracebacks.last(SESSION.format("=====================\nNOT_FOUND: ", "1795564701.018273").encode())
    assert first is not None
    assert several is not None
    assert first == second
    assert several.line == first.line
    assert first.line == "NotFoundError: /models/ps/model.ckpt-0_temp; No such file or directory (/opt/app/train_ps.py:26)"
    assert first.fingerprint
