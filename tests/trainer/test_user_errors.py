"""Errors of a user's code: only the user's lines are shown, and a fingerprint identifies the same error in two attempts."""

import errno
import gzip
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from trainer import error_file, user_errors
from trainer.stack_reading import Frame

CODE = """
import json

def load(text):
    return json.loads(text)

def chained(text):
    try:
        return load(text)
    except ValueError as error:
        raise RuntimeError("step 17 of 0x7f00aa: no settings") from error
"""


@pytest.fixture
def code(tmp_path: Path) -> ModuleType:
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    spec = importlib.util.spec_from_file_location("mine", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def caught(run: Callable[[], object]) -> Exception:
    try:
        run()
    except Exception as error:  # noqa: BLE001 - whichever it is
        return error
    pytest.fail("no error")


def own_frames(error: Exception) -> list[Frame]:
    """Return the frames in mine.py; those of this test count as a user's, too."""
    return [frame for frame in user_errors.user_frames(error) if frame.file.endswith("mine.py")]


def test_only_the_users_frames_are_shown(code: ModuleType) -> None:
    error = caught(lambda: code.load("{"))
    assert [(frame.function, frame.line) for frame in own_frames(error)] == [("load", 5)]
    text = user_errors.format_traceback(error, own_frames(error), "worker-3")
    assert text.startswith("worker-3: an error in your code")
    assert "    return json.loads(text)\nJSONDecodeError: Expecting property name" in text
    assert json.__file__ not in text


def test_places_in_messages_of_graphs_are_frames(code: ModuleType) -> None:
    path = code.__file__
    error = ValueError(f'in user code:\n\n    File "{path}", line 5, in load  *\n        return json.loads(text)\n\n    ValueError: no')
    assert own_frames(error) == [Frame(str(path), 5, "load")]


def test_an_error_on_another_task_names_that_task(code: ModuleType) -> None:
    error = ValueError(f"""  File "{code.__file__}", line 5, in load

no
Additional GRPC error information from remote target /job:worker/replica:0/task:12 while calling /tensorflow.eager.EagerService/Enqueue:""")
    assert user_errors.location(error, own_frames(error)) == f" ({code.__file__}:5, on worker-12)"
    assert user_errors.format_traceback(error, own_frames(error), "chief").startswith("chief: an error in your code, on worker-12; ")
    assert user_errors.location(error, []) == " (on worker-12)"
    assert user_errors.location(ValueError("no"), []) == ""


def test_an_error_of_the_library_shows_the_users_error_that_led_to_it(code: ModuleType) -> None:
    outer = RuntimeError("wrapped")
    outer.__cause__ = caught(lambda: code.chained("{"))
    assert [frame.function for frame in own_frames(outer)] == ["chained"]


def test_the_same_failure_has_the_same_fingerprint_whatever_numbers_it_names(code: ModuleType) -> None:
    first, second = (caught(lambda: code.chained("{")) for _ in range(2))
    second.args = ("step 18 of 0x7f11bb: no settings",)
    fingerprints = {user_errors.fingerprint(error, own_frames(error), 100) for error in (first, second)}
    assert len(fingerprints) == 1
    assert "mine.py:11" in fingerprints.pop()
    assert user_errors.fingerprint(first, own_frames(first), 100) != user_errors.fingerprint(first, own_frames(first), 200)
    first.args, second.args = ("[[0.1838][1.5307]]",), ("[[4][-1.5e-07]]",)
    assert user_errors.fingerprint(first, own_frames(first), 100) == user_errors.fingerprint(second, own_frames(second), 100)


def following(earlier: Exception) -> Exception:
    error = RuntimeError("could not fetch")
    error.__cause__ = earlier
    return error


def hiding(earlier: Exception) -> Exception:
    error = following(earlier)
    error.__context__, error.__cause__ = earlier, None  # as `raise ... from None`
    return error


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("gone"),
        OSError(28, "No space left"),
        MemoryError(),
        TimeoutError(),
        following(ConnectionResetError("gone")),
        RuntimeError("{{node x}} DEADLINE_EXCEEDED: no answer"),
        RuntimeError("Graph execution error:\n\nDetected at node PyFunc\nConnectionError: gone\nTraceback (most recent call last):\n"),
    ],
)
def test_a_transient_error_has_no_fingerprint(error: Exception) -> None:
    assert user_errors.fingerprint(error, [], 0) == ""


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(2, "No such file", "/x"),
        OSError(errno.EROFS, "Read-only file system", "/x"),
        following(FileNotFoundError(2, "No such file", "/x")),
        following(gzip.BadGzipFile("Not a gzipped file")),
        hiding(ConnectionResetError("gone")),
        BlockingIOError("[Errno 11] Unable to synchronously create file (unable to lock file, errno = 11)"),
        ValueError("2 root error(s) found.\n  (0) INVALID_ARGUMENT: no\n  (1) CANCELLED: stopped"),
    ],
)
def test_an_error_that_comes_again_has_a_fingerprint(error: Exception) -> None:
    assert user_errors.fingerprint(error, [], 0)


def test_the_parent_reads_the_error_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "error"
    assert (error_file.last_line(path), error_file.fingerprint(path)) == ("", "")
    error_file.write("not read: the variable is not set")
    monkeypatch.setenv(error_file.VARIABLE, str(path))
    error_file.write("KeyError: 'x'", "from step 0: here")
    assert (error_file.last_line(path), error_file.fingerprint(path)) == ("KeyError: 'x'", "from step 0: here")
    error_file.clear(path)
    assert (error_file.last_line(path), error_file.fingerprint(path)) == ("", "")
    assert (error_file.last_line(None), error_file.fingerprint(None)) == ("", "")


@pytest.mark.parametrize("path", ["/dev/full", "/no/such/directory/error"])
def test_an_error_file_that_cannot_be_written_does_not_change_the_exit_code(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(error_file.VARIABLE, path)
    error_file.write("KeyError: 'x'", "from step 0: here")


def test_an_error_line_may_have_what_utf_8_has_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "error"
    monkeypatch.setenv(error_file.VARIABLE, str(path))
    error_file.write("no file \udcff", "\udcff")
    assert (error_file.last_line(path), error_file.fingerprint(path)) == ("no file \\udcff", "\\udcff")
