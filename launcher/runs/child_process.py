"""What the process that keeps a run is given by who starts it, and how it answers."""

import argparse
import contextlib
import json
import os
from pathlib import Path


def options(program: str, arguments: list[str] | None) -> argparse.Namespace:
    """Return run_dir, ready_fd, lock_fd and lifeline_fd; what this process starts inherits none of the files."""
    parser = argparse.ArgumentParser(prog=program)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--ready-fd", type=int, required=True)
    parser.add_argument("--lock-fd", type=int, required=True)
    parser.add_argument("--lifeline-fd", type=int)
    given = parser.parse_args(arguments)
    for fd in (given.ready_fd, given.lock_fd, given.lifeline_fd):
        if fd is not None:
            os.set_inheritable(fd, False)
    return given


def tell(fd: int, document: dict[str, str]) -> None:
    """Answer on the ready pipe: nothing when all is well, else `message` and `remedy`."""
    with contextlib.suppress(OSError):  # who started it is gone
        os.write(fd, json.dumps(document).encode() + b"\n")
    os.close(fd)
