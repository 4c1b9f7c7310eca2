"""Detects files that are templates: in their text, and in the values that are read from them."""

import re

from launcher.errors import Problem
from launcher.spec.document import Document
from launcher.spec.problems import Finding, Path, shown

_BRACES = re.compile(r"\{\{|\{%")
_PLACEHOLDER = re.compile(r"\$\{[^}]*\}?|\$\([^)]*\)?")
_EXPECTED = "a TFJob as Kubernetes accepts it"
# Keys of lists of words for a program or a shell.
_WORDS = ("command", "args")


def in_text(text: str, file: str) -> list[Problem]:
    """Return a problem for each line with `{{ }}` or `{% %}`; comments do not count."""
    return [
        Problem(
            file,
            number,
            match.start() + 1,
            "",
            f"the file is a template: {shown(line[match.start() :].strip())}",
            _EXPECTED,
            "render it first, e.g. by `helm template`, and import the output",
        )
        for number, line in enumerate(text.splitlines(), 1)
        if not line.lstrip().startswith("#") and (match := _BRACES.search(line))
    ]


def in_values(document: Document) -> list[Finding]:
    """Return a finding for each `${...}` or `$(...)` in a field in which Kubernetes does not replace it, e.g. a name, an image or a number."""
    return [
        Finding(
            path,
            f"{shown(match[0])} is in a value in which nothing replaces it",
            "the value itself; such placeholders only work in command, args and the values of env",
            "render the template first, or write the value",
        )
        for path, source in document.sources.items()
        if source.text is not None and not _allows_placeholders(path) and (match := _PLACEHOLDER.search(source.text))
    ]


def _allows_placeholders(path: Path) -> bool:
    """Return whether the text at a path may have any content."""
    below = path[-2:-1]
    return (
        (bool(below) and below[0] in _WORDS)
        or (path[-1:] == ("value",) and path[-3:-2] == ("env",))
        or path[-1:] == ("subPathExpr",)
        or "annotations" in path
        or path[:1] == ("status",)
    )
