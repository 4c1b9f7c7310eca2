"""`--set path=value`: changes to a spec from the command line, checked like the file itself."""

from typing import Any

from launcher.errors import Problem, SpecError
from launcher.spec import syntax
from launcher.spec.document import Document, Reader, SourceEntry
from launcher.spec.problems import Path, SourceLocation, path_text, shown

SOURCE = "--set"
_EXPECTED = "path=value, such as train.steps=500 or roles.ps={replicas: 2}"


def apply(document: Document, text: str, number: int) -> None:
    """Set one value in the document; `number` counts the options from 1 and is the line of their source locations.

    The value is YAML. Missing mappings on its path are created. Raises SpecError when the text is not `path=value`, or
    a part of the path is not a mapping.
    """
    start = SourceLocation(SOURCE, number, 1)
    written, equals, value_text = text.partition("=")
    path: Path = tuple(part.strip() for part in written.split("."))
    if not equals or not all(path):
        raise _error(start, (), f"{shown(text)} sets nothing", _EXPECTED, "write the path of a field, `=`, and its value")
    node = syntax.parse_value(value_text, SOURCE, number, column=len(written) + 2)
    value_location = SourceLocation(SOURCE, number, len(written) + 2)
    if node is None:
        parsed = Document(None, {path: SourceEntry(start, value_location, "")})
    else:
        parsed = Reader(SOURCE, number, len(written) + 2).read(node, path, start)
    parent = _mapping_at(document, path[:-1], start)
    _forget(document, path)
    parent[str(path[-1])] = parsed.value
    document.sources.update(parsed.sources)
    document.findings += parsed.findings
    document.unusable |= parsed.unusable


def _mapping_at(document: Document, path: Path, start: SourceLocation) -> dict[str, Any]:
    """Return the mapping at a path; missing mappings are created."""
    mapping: dict[str, Any] = document.value
    for length, part in enumerate(path, 1):
        below = path[:length]
        if mapping.get(str(part)) is None:
            _forget(document, below)
            mapping[str(part)] = {}
            document.sources[below] = SourceEntry(start, start)
        inner = mapping[str(part)]
        if not isinstance(inner, dict):
            message = f"`{path_text(below)}` is {shown(inner)}, which has nothing inside to set"
            raise _error(start, below, message, "the path of a field", f"set `{path_text(below)}` as a whole")
        mapping = inner
    return mapping


def _forget(document: Document, path: Path) -> None:
    """Drop the sources and findings of a value that is replaced."""
    size = len(path)
    document.sources = {known: source for known, source in document.sources.items() if known[:size] != path}
    document.findings = [finding for finding in document.findings if finding.path[:size] != path]
    document.unusable = {known for known in document.unusable if known[:size] != path}


def _error(location: SourceLocation, path: Path, message: str, expected: str, remedy: str) -> SpecError:
    return SpecError([Problem(location.file, location.line, location.column, path_text(path), message, expected, remedy)])
