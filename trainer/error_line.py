"""The one line of an exception that matters to the user, without what TensorFlow and Keras wrap around it."""

from __future__ import annotations

import re

# Paragraphs of a message that say where, not what: the headings and frames of AutoGraph, of graph errors and of Keras.
_WHERE = re.compile(
    r'in user code:|Graph execution error:|Detected at node|Original stack trace for|File "|(\w+: )?Exception encountered when calling'
)
# Parts of the paragraph that says what: colours, the function on a device, a heading whose frames are not known or up to its node, one that says how many
# errors follow (of which the first that is not another's end is shown), an operation's name.
_NOISE = re.compile(
    r"\x1b\[[\d;]*m|\{\{function_node [^}]*\}\} |Detected at node .*\n<stack traces unavailable>\n"
    r"|Detected at node (?:.+\n)*?Node: .*\n|={5,}\n|(?:[A-Z_]+: )?From /job:\S+:\n"
    r"|\d+ root error\(s\) found\.\n(?:\s*\(\d+\) CANCELLED:.*\n(?:\t.*\n)*)*\s*\(\d+\) [A-Z_]+: +| \[Op:\w+\]( name:.*)?"
)


def error_line(error: Exception) -> str:
    """Return `Type: message`, the message cut to its first line.

    AutoGraph, graphs and Keras raise errors again with lines of their own above the original message; the line is then the original one.
    """
    return line_of(type(error).__name__, str(error))


def line_of(kind: str, message: str) -> str:
    """Return the same for an exception of the class named `kind`."""
    paragraphs = [part.strip() for part in re.split(r"\n\s*\n", _NOISE.sub("", message)) if part.strip()]
    paragraph = next((part for part in paragraphs if not _WHERE.match(part)), "".join(paragraphs[:1]))
    line = next(iter(paragraph.splitlines()), "")
    # AutoGraph's own error stands for one of a class that it cannot make; that one is in the message.
    return line if kind == "StagingError" or line.startswith(f"{kind}: ") else f"{kind}: {line}"
