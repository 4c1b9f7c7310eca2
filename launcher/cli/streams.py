"""The program's own stdin, stdout and stderr: each may be closed, or have an encoding that lacks a character."""

import io
import os
import sys
from collections.abc import Callable, Iterable


def prepare() -> None:
    """Let every print succeed: a closed stream becomes /dev/null, and a character that an encoding lacks is written as an escape."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:  # closed, as by >&- in a shell
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8", closefd=False))
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_yaml(text: str) -> None:
    """Print YAML in UTF-8, as it is written to files: an escape would change the text."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    print(text, end="")


def printer(*, as_json: bool) -> Callable[[str], None]:
    """Return the function that prints a line for people: with --json to stderr, as stdout is for the program that reads it."""
    return lambda message: print(message, file=sys.stderr if as_json else sys.stdout, flush=True)


def print_notices(notices: Iterable[str]) -> None:
    """Print each notice to stderr as soon as it comes."""
    for notice in notices:
        print(f"notice: {notice}", file=sys.stderr, flush=True)
