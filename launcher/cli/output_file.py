"""The check of a file to write that was named on the command line, before anything is made for it."""

import shlex
from pathlib import Path

from launcher.errors import UsageError


def check(file: Path, example: str = "cluster.yaml") -> None:
    """Raise UsageError where `file` is a directory, in which `example` could be written, or is in none."""
    if file.is_dir():
        raise UsageError(f"{file} is a directory", f"give the file to write, such as {shlex.quote(str(file / example))}")
    if not file.parent.exists():
        raise UsageError(f"{file}: there is no directory {file.parent}", f"make it first: {shlex.join(['mkdir', '-p', str(file.parent)])}")
    if not file.parent.is_dir():
        raise UsageError(f"{file} cannot be written: {file.parent} is no directory", "give a file in a directory that you may write to")
