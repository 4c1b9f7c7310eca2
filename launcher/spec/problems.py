"""The problems of a spec: as findings at a path, located in the file, and as text for users."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from launcher.errors import Problem

# Keys and list indices from the top of the document, such as ("roles", "worker", "replicas") or ("command", 0).
Path = tuple[str | int, ...]

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+\Z")
_MAX_SHOWN = 60


@dataclass(frozen=True)
class SourceLocation:
    """A location in a source file; lines and columns count from 1."""

    file: str
    line: int
    column: int


@dataclass(frozen=True)
class Finding:
    """Something wrong at a path of the document; `on` says whether the key or the value is at fault.

    `location` is set only if the path is ambiguous, e.g. for a duplicate key.
    """

    path: Path
    message: str
    expected: str = ""
    remedy: str = ""
    on: Literal["key", "value"] = "value"
    location: SourceLocation | None = None


class FieldError(ValueError):
    """A field does not accept its value. Validators raise it; the loader turns it into a Problem."""

    def __init__(self, message: str, expected: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.expected = expected
        self.remedy = remedy


def path_text(path: Path) -> str:
    """Write a path as users write it: `roles.worker.replicas`, `command[0]`, `env["my.key"]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_KEY.match(part):
            text += f".{part}" if text else part
        else:
            text += f"[{shown(part)}]"
    return text


def shown(value: object) -> str:
    """Write a value for messages: on one line, as JSON, cut if it is long."""
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=not value.isprintable())
    elif isinstance(value, dict):
        return "a mapping"
    elif isinstance(value, list):
        return "a list"
    else:
        text = json.dumps(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def named(key: str) -> str:
    """Write a key for messages: in backticks, or as JSON if it is empty, long or not printable."""
    return f"`{key}`" if key and key.isprintable() and len(key) <= _MAX_SHOWN else shown(key)


def any_of(names: Iterable[str]) -> str:
    """Write names as a choice: `a, b or c`."""
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last


def all_of(names: Iterable[str]) -> str:
    """Write names as a list: `a, b and c`."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def render(problems: Iterable[Problem]) -> str:
    """Write problems as plain text: a line with the location and what is wrong, then what was expected and what to do."""
    blocks = []
    for problem in problems:
        path = f"{problem.path}: " if problem.path else ""
        lines = [f"{problem.file}:{problem.line}:{problem.column}: {path}{problem.message}"]
        lines += [f"    expected: {problem.expected}"] * bool(problem.expected)
        lines += [f"    to fix: {problem.remedy}"] * bool(problem.remedy)
        blocks.append("\n".join(lines))
    return "\n".join(blocks)
