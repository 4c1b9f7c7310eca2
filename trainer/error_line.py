"""The line of an exception that matters to the user, without what TensorFlow and Keras wrap around it. Also the errors of files that no retry ends."""

from __future__ import annotations

import re

# Errors of the class OSError that another attempt does not end: a file that is missing or not permitted.
PERMANENT_OS_ERRORS = frozenset({"FileNotFoundError", "PermissionError", "IsADirectoryError", "NotADirectoryError"})
# Paragraphs of a message with the location of an error: the headings and frames of AutoGraph, of graph errors and of Keras.
_LOCATION = re.compile(
    r'in user code:|Graph execution error:|Detected at node|Original stack trace for|File "|(\w+: )?Exception encountered when calling'
)
# Parts to remove from the paragraph with the error: colours, the function on a device, a heading without frames or up to its node, the count of the errors
# that follow (up to the first that is no mere consequence, CANCELLED), an operation's name.
_NOISE = re.compile(
    r"\x1b\[[\d;]*m|\{\{function_node [^}]*\}\} |Detected at node .*\n<stack traces unavailable>\n"
    r"|Detected at node (?:.+\n)*?Node: .*\n|={5,}\n|(?:[A-Z_]+: )?From /job:\S+:\n"
    r"|\d+ root error\(s\) found\.\n(?:\s*\(\d+\) CANCELLED:.*\n(?:\t.*\n)*)*\s*\(\d+\) [A-Z_]+: +| \[Op:\w+\]( name:.*)?"
)


def error_line(error: Exception) -> str:
    """Return `Type: message`, the message cut to its first line.

    AutoGraph, graphs and Keras re-raise errors with lines of their own above the original message; the original one is returned.
    """
    return exception_line(type(error).__name__, str(error))


def exception_line(kind: str, message: str) -> str:
    """Return `Type: message`, the message cut to its first line, for an exception of the class named `kind`."""
    paragraphs = [part.strip() for part in re.split(r"\n\s*\n", _NOISE.sub("", message)) if part.strip()]
    paragraph = next((part for part in paragraphs if not _LOCATION.match(part)), "".join(paragraphs[:1]))
    line = next(iter(paragraph.splitlines()), "")
    # AutoGraph raises StagingError in place of a class that it cannot construct; the message names that class.
    return line if kind == "StagingError" or line.startswith(f"{kind}: ") else f"{kind}: {line}"
