"""Signs that a file is a template which something else fills in first: by line, before and after it is read as YAML."""

import re

from launcher.errors import Problem
from launcher.spec.document import Document
from launcher.spec.problems import Finding, Path, shown

_BRACES = re.compile(r"\{\{|\{%")
_PLACEHOLDER = re.compile(r"\$\{[^}]*\}?|\$\([^)]*\)?")
_EXPECTED = "a TFJob as Kubernetes takes it"
# Lists of words that a program or a shell reads, wherever they stand.
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
            "let the program that it is for fill it in first, such as `helm template`, and import what that writes",
        )
        for number, line in enumerate(text.splitlines(), 1)
        if not line.lstrip().startswith("#") and (match := _BRACES.search(line))
    ]


def in_values(document: Document) -> list[Finding]:
    """Return a finding for each `${...}` or `$(...)` in a name, an image, a number or the like, where Kubernetes replaces nothing."""
    return [
        Finding(
            path,
            f"{shown(match[0])} stands in a value where nothing replaces it",
            "the value itself; such placeholders work in command, args and the values of env alone",
            "fill the template in first, or write the value",
        )
        for path, source in document.sources.items()
        if source.text is not None and not _is_free(path) and (match := _PLACEHOLDER.search(source.text))
    ]


def _is_free(path: Path) -> bool:
    """Return whether a text of any content may stand at a path."""
    below = path[-2:-1]
    return (
        (bool(below) and below[0] in _WORDS)
        or (path[-1:] == ("value",) and path[-3:-2] == ("env",))
        or path[-1:] == ("subPathExpr",)
        or "annotations" in path
        or path[:1] == ("status",)
    )
