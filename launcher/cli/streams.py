"""The program's own stdin, stdout and stderr: each may be closed, and have an encoding that lacks characters of what is printed."""

import io
import os
import sys


def prepare() -> None:
    """Have all that is printed go through: nowhere where a stream is closed, and as an escape where its encoding lacks a character."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:  # closed, as by >&- in a shell
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8", closefd=False))
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_yaml(text: str) -> None:
    """Print YAML as it is written to files, in UTF-8: an escape would be another text to who reads it."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    print(text, end="")
