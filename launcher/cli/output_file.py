"""The check of an output file of the command line, before its content is created."""

import shlex
from pathlib import Path

from launcher.errors import UsageError


def check(file: Path, example: str = "cluster.yaml", *, force: bool = True) -> None:
    """Raise UsageError if `file` is a directory, or its parent is none; without `force` also if it exists.

    The remedy names `example` as a file in the directory.
    """
    if file.is_dir():
        raise UsageError(f"{file} is a directory", f"give a file, e.g. {shlex.quote(str(file / example))}")
    if not file.parent.exists():
        raise UsageError(
            f"{file}: there is no directory {file.parent}", f"create it first: {shlex.join(['mkdir', '-p', str(file.parent)])}"
        )
    if not file.parent.is_dir():
        raise UsageError(f"{file} cannot be written: {file.parent} is not a directory", "give a file in a directory that you may write to")
    if file.exists() and not force:
        raise UsageError(f"{file} already exists", "give another file, or --force to overwrite it")
