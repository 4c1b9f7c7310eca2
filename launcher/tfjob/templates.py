"""Detects files that are templates: in their text, and in the values that are read from them."""

import re
from collections.abc import Iterator, Sequence

import yaml

from launcher.errors import Problem
from launcher.spec.document import Document
from launcher.spec.problems import Finding, Path, shown

_BRACES = re.compile(r"\{\{|\{%")
_COMMENT = re.compile(r"(?:^|\s)#.*")
_PLACEHOLDER = re.compile(r"\$\{[^}]*\}?|\$\([^)]*\)?")
_EXPECTED = "a TFJob as Kubernetes accepts it"
# Keys of lists of words for a program or a shell.
_WORDS = ("command", "args")


def in_text(text: str, file: str, nodes: Sequence[yaml.Node]) -> list[Problem]:
    """Return a problem for each line with `{{ }}` or `{% %}`; comments do not count.

    There is none if all of them are in values of `nodes`, the text's documents, that may have any content: Docker has such formats, too.
    """
    found = [
        (number, match.start(), line) for number, line in enumerate(text.splitlines()) if (match := _BRACES.search(_COMMENT.sub("", line)))
    ]
    spans = [((node.start_mark.line, node.start_mark.column), (node.end_mark.line, node.end_mark.column)) for node in _words(nodes)]
    if all(any(start <= (number, column) < end for start, end in spans) for number, column, _ in found):
        return []
    return [
        Problem(
            file,
            number + 1,
            column + 1,
            "",
            f"the file is a template: {shown(line[column:].strip())}",
            _EXPECTED,
            "render it first, e.g. by `helm template`, and import the output",
        )
        for number, column, line in found
    ]


def _words(nodes: Sequence[yaml.Node]) -> Iterator[yaml.ScalarNode]:
    """Yield the texts that may have any content."""
    pending: list[tuple[Path, yaml.Node]] = [((), node) for node in nodes]
    seen: set[int] = set()  # an alias may refer to a node around it
    while pending:
        path, node = pending.pop()
        if isinstance(node, yaml.ScalarNode) and _allows_placeholders(path):
            yield node
        elif isinstance(node, yaml.CollectionNode) and id(node) not in seen:
            seen.add(id(node))
            below = node.value if isinstance(node, yaml.MappingNode) else enumerate(node.value)
            pending += [((*path, key.value if isinstance(key, yaml.ScalarNode) else key), inner) for key, inner in below]


def in_words(document: Document) -> list[Path]:
    """Return the paths of texts with `{{ }}` or `{% %}` that may have any content."""
    return [path for path, source in document.sources.items() if _allows_placeholders(path) and _BRACES.search(source.text or "")]


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
