"""Detects files that are templates: in their text, and in the values that are read from them."""

import re
from collections.abc import Iterator, Sequence

import yaml

from launcher.errors import Problem
from launcher.spec import names
from launcher.spec.document import Document
from launcher.spec.problems import Finding, Path, shown

_BRACES = re.compile(r"\{\{|\{%")
_COMMENT = re.compile(r"(?:^|(?<=\s))#")
_PLACEHOLDER = re.compile(r"\$\{[^}]*\}?|\$\([^)]*\)?")
_EXPECTED = "a TFJob as Kubernetes accepts it"
# The annotation in which `kubectl apply` keeps the object as it was applied, with all its texts.
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
# Keys of lists of words for a program or a shell.
_WORDS = ("command", "args")
_Position = tuple[int, int]  # line and column, from 0


def in_text(text: str, file: str, nodes: Sequence[yaml.Node]) -> list[Problem]:
    """Return a problem for each line with `{{ }}` or `{% %}`; comments do not count.

    There is none if all of them are in values of `nodes`, the text's objects, that may have any content: Docker has such formats, too.
    """
    scalars = list(_scalars(nodes))
    in_quotes = [_span(node) for _, node in scalars if node.style in {"'", '"'}]  # ` #` begins no comment there
    found = []
    for number, line in enumerate(text.splitlines()):
        if _BRACES.search(line):
            comments = (match.start() for match in _COMMENT.finditer(line) if not _is_within((number, match.start()), in_quotes))
            if match := _BRACES.search(line[: next(comments, None)]):
                found.append((number, match.start(), line))
    words = [_span(node) for path, node in scalars if _allows_placeholders(path)]
    if all(_is_within((number, column), words) for number, column, _ in found):
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


def _scalars(nodes: Sequence[yaml.Node]) -> Iterator[tuple[Path, yaml.ScalarNode]]:
    """Yield all keys and values that are scalars, with the paths of the values; that of a key is empty."""
    pending: list[tuple[Path, yaml.Node]] = [((), node) for node in nodes]
    seen: set[int] = set()  # an alias may refer to a node around it
    while pending:
        path, node = pending.pop()
        if isinstance(node, yaml.ScalarNode):
            yield path, node
        elif isinstance(node, yaml.CollectionNode) and id(node) not in seen:
            seen.add(id(node))
            below = node.value if isinstance(node, yaml.MappingNode) else enumerate(node.value)
            for key, inner in below:
                pending.append(((*path, key.value if isinstance(key, yaml.ScalarNode) else key), inner))
                if isinstance(key, yaml.Node):
                    pending.append(((), key))


def _span(node: yaml.ScalarNode) -> tuple[_Position, _Position]:
    """Return the lines and columns of a scalar's begin and end."""
    return (node.start_mark.line, node.start_mark.column), (node.end_mark.line, node.end_mark.column)


def _is_within(position: _Position, spans: Sequence[tuple[_Position, _Position]]) -> bool:
    return any(start <= position < end for start, end in spans)


def in_words(document: Document) -> list[Path]:
    """Return the paths of texts with `{{ }}` or `{% %}` that may have any content, and are carried over."""
    return [
        path
        for path, source in document.sources.items()
        if _allows_placeholders(path) and _BRACES.search(source.text or "") and not _is_left_out(path)
    ]


def _is_left_out(path: Path) -> bool:
    """Return whether the import leaves out a text that the cluster or the launcher sets."""
    key = str(path[-1])
    return path[:1] == ("status",) or (path[-2:-1] == ("annotations",) and (key == LAST_APPLIED or names.is_reserved_label(key)))


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
