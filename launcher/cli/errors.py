"""Report of errors to the user: `error:` and what to do next on stderr, or one JSON object with --json."""

import errno
import json
import os
import re
import shutil
import sys
import traceback
from dataclasses import asdict
from typing import Any

import typer

from launcher.errors import LauncherError, SpecError

WRONG_USAGE = 2
INTERRUPTED = 130  # by Ctrl-C, as in shells

_OS_REMEDY: dict[int, str] = {
    errno.EACCES: "check its permissions, or give another path",
    errno.EPERM: "check its permissions, or give another path",
    errno.EROFS: "give a path that can be written",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path: a part of it is a file, not a directory",
    errno.EISDIR: "give a file, not a directory",
    errno.EEXIST: "remove the file that is there, or give another path",
    errno.ENOSPC: "free some space on that disk, or give a path on another",
    errno.EDQUOT: "free some of your quota on that disk, or give a path on another",
    errno.ENAMETOOLONG: "give a shorter path",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


def report(error: Exception, *, as_json: bool) -> int:
    """Report `error` on stderr and return the exit code."""
    if os.environ.get("LAUNCHER_DEBUG"):
        traceback.print_exception(error)
    document = _document_of(error)
    if as_json:
        print(json.dumps(document), file=sys.stderr)
    else:
        _print(error, document)
    return int(document["exit_code"])


def _document_of(error: Exception) -> dict[str, Any]:
    match error:
        case SpecError():
            return _document(error.message, error.remedy, error.exit_code, [asdict(problem) for problem in error.problems])
        case LauncherError():
            return _document(error.message, error.remedy, error.exit_code)
        case typer.Abort():
            return _document("cancelled at the prompt; nothing was changed", "", INTERRUPTED)
    # Errors of the command line itself: the classes of typer and click differ between versions, their attributes do not.
    format_message = getattr(error, "format_message", None)
    if format_message is not None:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "launcher"
        return _document(format_message().rstrip("."), f"`{path} --help` shows the usage", WRONG_USAGE)
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        message = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        return _document(message, _OS_REMEDY.get(error.errno or 0, "set LAUNCHER_DEBUG=1 to see where it happened"), 1)
    return _document(f"unexpected {message}", "set LAUNCHER_DEBUG=1 to see the traceback, and report it", 1)


def _document(message: str, remedy: str, exit_code: int, problems: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"error": message, "remedy": remedy, "exit_code": exit_code, "problems": problems or []}


def _print(error: Exception, document: dict[str, Any]) -> None:
    # Without rich, whose import would add 0.1 s to each wrong command line.
    colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    red, cyan, end = ("\033[1;31m", "\033[36m", "\033[0m") if colour else ("", "", "")
    if isinstance(error, SpecError):
        from launcher.spec.problems import render

        print(render(error.problems), file=sys.stderr)
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else None
    for name, style, text in (("error:", red, document["error"]), ("remedy:", cyan, document["remedy"])):
        if text:
            print(f"{style}{name}{end} {wrapped(text, width, len(name) + 1)}", file=sys.stderr)


def wrapped(text: str, width: int | None, column: int) -> str:
    """Return a text wrapped at `width`, between words and never in a command in backticks; the first line starts at column `column`.

    Indented lines, which are a program's output, stay unwrapped.
    """
    if width is None:
        return text
    first, *more = text.split("\n")
    return "\n".join([_filled(first, width, column), *(line if line[:1].isspace() else _filled(line, width, 0) for line in more)])


def _filled(text: str, width: int, column: int) -> str:
    lines, left = [""], width - column
    for word in re.findall(r"[^\s`]*`[^`]*`\S*|\S+", text):
        if lines[-1] and left < len(word) + 1:
            lines.append("")
            left = width
        left -= len(word) + bool(lines[-1])
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)
