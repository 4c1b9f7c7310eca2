"""Shows an error of the user's code as the user wrote it, and recognises the same error of two attempts. Imports no TensorFlow.

Frames of TensorFlow, Keras, the standard library and the trainer do not help the model's author, nor does code that AutoGraph
generated. So only the frames of the user's own files are shown, in order.
"""

import errno
import itertools
import linecache
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

from trainer.error_line import PERMANENT_OS_ERRORS, error_line
from trainer.stack_reading import Frame
from trainer.tf_config import task_name
from trainer.tracebacks import KIND, is_transient, remedy

# Directories without the user's own code: Python, its packages (unless `user_frames` gets one of them as the user's), and the trainer. For stacks and
# tracebacks that are only text, of which this process may lack the files, stack_reading.py and tracebacks.py have patterns instead.
_FOREIGN = tuple({*(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")), str(Path(__file__).parent)})
_GENERATED = "__autograph_generated_file"
# The source location in messages of AutoGraph and of graph errors.
_IN_MESSAGE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
# The task on which the chief's operation failed, in TensorFlow's messages.
_ON_TASK = re.compile(r"from remote target /job:(\w+)/replica:\d+/task:(\d+)")
_NUMBER = re.compile(r"0x[0-9a-f]+|[-+]?\d+(\.\d+)?(e[-+]?\d+)?")
_EARLIER = 3  # causes of an error to follow, at most


def user_frames(error: BaseException, module: str = "") -> list[Frame]:
    """Return the frames of the user's files, the innermost last. `module` is the user's, wherever it is installed."""
    package = _package_of(module)
    frames = [Frame(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(error.__traceback__)]
    frames += [Frame(file, int(line), function) for file, line, function in _IN_MESSAGE.findall(str(error))]
    found = [frame for frame in frames if _is_users(frame.file, package)]
    if not found and len(earlier := list(_earlier(error))) > 0:
        return user_frames(earlier[0], module)
    return list(dict.fromkeys(found))


def remote_task(error: BaseException) -> str:
    """Return the remote task on which the operation failed; empty if it failed here, or that is unknown."""
    found = _ON_TASK.search(str(error))
    return task_name(found[1], int(found[2])) if found else ""


def location(error: BaseException, frames: list[Frame]) -> str:
    """Return an error's location, to append to an error line: the user's file and line, and the task if it is another one."""
    parts = [f"{frames[-1].file}:{frames[-1].line}"] if frames else []
    parts += [f"on {task}"] if (task := remote_task(error)) else []
    return f" ({', '.join(parts)})" if parts else ""


def format_traceback(error: BaseException, frames: list[Frame], task: str) -> str:
    """Return the user's traceback as text, the error line last."""
    where = remote_task(error)
    lines = [
        f"{task}: an error in your code{f', on {where}' if where else ''}; the frames of TensorFlow, Keras and the trainer are left out",
        "Traceback (most recent call last):",
    ]
    for frame in frames:
        lines.append(f'  File "{frame.file}", line {frame.line}, in {frame.function}')
        if source := linecache.getline(frame.file, frame.line).strip():
            lines.append(f"    {source}")
    return "\n".join([*lines, _line(error)])


def fingerprint(error: BaseException, frames: list[Frame], start: int) -> str:
    """Return a text that is equal if two attempts fail the same way without progress between them; empty if a transient error led to it.

    `start` is the step from which the attempt continued: with a checkpoint between two failures, their fingerprints differ.
    """
    own = {kind.__name__ for kind in type(error).__mro__}
    # Of the errors that led to it only the class itself, as in a command's output: many a library's error of a bad file is an OSError.
    transient = _is_transient(error, own) or any(_is_transient(one, {type(one).__name__}) for one in _printed_above(error))
    if transient and not remedy(_line(error)):
        return ""
    inner = traceback.extract_tb(error.__traceback__)[-1:]
    last = frames[-1] if frames else Frame(inner[0].filename, inner[0].lineno or 0, inner[0].name) if inner else None
    # Numbers in a message may be a step, a value or an address.
    message = _NUMBER.sub("#", _line(error))
    return f"from step {start}: {last.file if last else ''}:{last.line if last else 0}: {message}"


def _is_transient(error: BaseException, names: set[str]) -> bool:
    if names & PERMANENT_OS_ERRORS or (isinstance(error, OSError) and error.errno == errno.EROFS):
        return False
    # TensorFlow quotes the error of a dataset's function. Only the error line, as other lines may have the CANCELLED that follows from any error.
    return is_transient([*names, *KIND.findall(str(error))], _line(error))


def _printed_above(error: BaseException) -> Iterator[BaseException]:
    """Yield the earlier errors that a traceback prints above this one: none beyond a `raise ... from None`."""
    for later, earlier in itertools.pairwise((error, *_earlier(error))):
        if later.__suppress_context__ and earlier is not later.__cause__:
            return
        yield earlier


def _line(error: BaseException) -> str:
    return error_line(error) if isinstance(error, Exception) else f"{type(error).__name__}: {error}"


def _is_users(file: str, package: str | None) -> bool:
    if file.startswith("<") or _GENERATED in file:
        return False
    path = str(Path(file).resolve())
    if package and path.startswith(package):
        return True
    return not any(path.startswith((f"{directory}/", f"{Path(directory).resolve()}/")) for directory in _FOREIGN)


def _package_of(module: str) -> str | None:
    """Return the directory or the file of the user's top-level package."""
    found = getattr(sys.modules.get(module.split(".", maxsplit=1)[0]), "__file__", None) if module else None
    if not found:
        return None
    path = Path(found).resolve()
    return f"{path.parent}/" if path.name == "__init__.py" else str(path)


def _earlier(error: BaseException) -> Iterator[BaseException]:
    for _ in range(_EARLIER):
        following = error.__cause__ or error.__context__
        if following is None:
            return
        yield following
        error = following
