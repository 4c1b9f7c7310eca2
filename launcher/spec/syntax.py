"""Parses untrusted YAML text to a tree of nodes with marks: limits are checked first, errors are worded for users."""

import re
from collections.abc import Iterator
from dataclasses import replace

import yaml

from launcher.errors import Problem, SpecError

# A spec with every key and 10,000 words of comment is far below these limits.
MAX_BYTES = 2**20
MAX_DEPTH = 32
MAX_EVENTS = 50_000

_NULL = "tag:yaml.org,2002:null"  # the tag of an empty document

_FastLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# The pure Python parser words its errors better, but is slow on large texts.
_PURE_PYTHON_BELOW = 65536

# https://yaml.org/spec/1.2.2/#51-character-set
_NOT_PRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_CHECK_INDENT = "check the indentation of this line and of the one above"
# Part of a parser's error -> the message for users, and the remedy.
_MESSAGES: tuple[tuple[str, str, str], ...] = (
    ("found character '\\t'", "a tab stands where YAML needs spaces", "indent with spaces"),
    ("mapping values are not allowed", "a `:` makes no sense here", f"put text that contains `: ` in quotes, or {_CHECK_INDENT}"),
    ("found undefined alias", "`*` refers to an anchor that is not defined", "put text that starts with `*` in quotes"),
    ("expected alphabetic or numeric character", "`*` or `&` stands without a name", "put text that starts with `*` or `&` in quotes"),
    ("that cannot start any token", "text cannot start with this character", "put the text in quotes"),
    ("found unexpected end of stream", "a quote is opened here and never closed", "close the quote"),
    ("expected ',' or ']'", "a list opened with `[` is not closed here", "close it with `]`; separate its items with commas"),
    ("expected ',' or '}'", "a mapping opened with `{` is not closed here", "close it with `}`; separate its items with commas"),
    ("could not find expected ':'", "a key without its `:` stands here", "write `key: value`, with a space after the colon"),
    ("expected <block end>", "this line does not fit the ones above", _CHECK_INDENT),
    ("found unknown escape character", "an unknown escape stands in a text in double quotes", "double the backslash, or use single quotes"),
)


def parse(data: bytes, file: str) -> yaml.MappingNode:
    """Return the document, a mapping. Raises SpecError with the first problem that makes it unreadable."""
    text = _decode(data, file)
    node = _compose(text, file)
    if node is None:
        raise _error(file, 0, 0, "the file is empty", "a cluster spec", "write a starter spec with `launcher init`")
    if not isinstance(node, yaml.MappingNode):
        kind = "a list" if isinstance(node, yaml.SequenceNode) else "a single value"
        raise _error(
            file,
            node.start_mark.line,
            node.start_mark.column,
            f"the document is {kind}",
            "a mapping: lines of `key: value`",
            "start with `version: 1`, or write a starter spec with `launcher init`",
        )
    return node


def unreadable(file: str, error: OSError | ValueError, expected: str, remedy: str) -> Problem:
    """Return the problem of a file that cannot be read; `remedy` is for a missing file or a directory."""
    for kind, message in ((IsADirectoryError, "this is a directory"), (FileNotFoundError, "there is no such file")):
        if isinstance(error, kind):
            return Problem(file, 1, 1, "", message, expected, remedy)
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return Problem(file, 1, 1, "", f"the file cannot be read: {reason}", "a readable file", "check its permissions")


def parse_all(data: bytes, file: str) -> list[yaml.Node]:
    """Return the documents of a file, without empty ones. Raises SpecError as `parse` does."""
    text = _decode(data, file)
    try:
        _check_limits(_events(text), file, documents=MAX_EVENTS)
        nodes: list[yaml.Node] = list(yaml.compose_all(text, Loader=_FastLoader))
    except yaml.MarkedYAMLError as error:
        raise _in_user_words(text, file, error) from None
    return [node for node in nodes if not (isinstance(node, yaml.ScalarNode) and node.tag == _NULL)]


def parse_value(text: str, file: str, line: int, column: int) -> yaml.Node | None:
    """Return the node of one value, such as `3` or `{replicas: 2}`; None when there is none.

    The text starts at `line` and `column`. Raises SpecError as `parse` does.
    """
    try:
        return _compose(_decode(text.encode("utf-8", "surrogatepass"), file), file)
    except SpecError as error:
        moved = [replace(problem, line=line, column=problem.column + column - 1) for problem in error.problems]
        raise SpecError(moved) from None


def _compose(text: str, file: str) -> yaml.Node | None:
    try:
        _check_limits(_events(text), file)
        return yaml.compose(text, Loader=_FastLoader)
    except yaml.MarkedYAMLError as error:
        raise _in_user_words(text, file, error) from None


def _error(file: str, line: int, column: int, message: str, expected: str = "", remedy: str = "") -> SpecError:
    return SpecError([Problem(file, line + 1, column + 1, "", message, expected, remedy)])


def _decode(data: bytes, file: str) -> str:
    if len(data) > MAX_BYTES:
        raise _error(file, 0, 0, f"the file is larger than {MAX_BYTES // 1024} KiB", "a cluster spec", "name the spec itself")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _error(file, 0, 0, "the file is UTF-16", "UTF-8 text", "save it as UTF-8")
    if b"\0" in data[:4096]:
        raise _error(file, 0, 0, "the file is binary", "a cluster spec: YAML text in UTF-8", "name the spec itself")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig", "replace")
        message = f"byte 0x{data[error.start]:02x} is not UTF-8 text"
        raise _error(file, before.count("\n"), _column(before), message, "UTF-8 text", "save the file as UTF-8") from None
    if match := _NOT_PRINTABLE.search(text):
        before = text[: match.start()]
        message = f"the control character U+{ord(match[0]):04X} stands here"
        raise _error(file, before.count("\n"), _column(before), message, "text", "remove it")
    return text


def _column(before: str) -> int:
    return len(before) - (before.rfind("\n") + 1)


def _events(text: str) -> Iterator[yaml.Event]:
    events: Iterator[yaml.Event] = yaml.parse(text, Loader=_FastLoader)
    return events


def _check_limits(events: Iterator[yaml.Event], file: str, *, documents: int = 1) -> None:
    """Raise SpecError where the text exceeds a limit. Composing recurses, parsing does not, so this comes before it. At most `documents` may begin."""
    depth = documents_begun = 0
    for count, event in enumerate(events):
        line, column = (event.start_mark.line, event.start_mark.column) if event.start_mark else (0, 0)
        if isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            depth += 1
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            depth -= 1
        elif isinstance(event, yaml.DocumentStartEvent):
            documents_begun += 1
        if depth > MAX_DEPTH:
            message = f"values are nested deeper than {MAX_DEPTH} levels"
            raise _error(file, line, column, message, "a cluster spec", "name the spec itself")
        if documents_begun > documents:
            message = "a second document starts here"
            remedy = "write one spec per file: remove the `---` line and the text after it"
            raise _error(file, line, column, message, "one document", remedy)
        if count > MAX_EVENTS:
            message = "the file holds too many values"
            raise _error(file, line, column, message, "a cluster spec", "name the spec itself")


def _in_user_words(text: str, file: str, error: yaml.MarkedYAMLError) -> SpecError:
    if len(text) < _PURE_PYTHON_BELOW:
        try:
            list(yaml.compose_all(text, Loader=yaml.SafeLoader))
        except yaml.MarkedYAMLError as python_error:
            error = python_error
        except yaml.YAMLError:
            pass
    problem = error.problem or "cannot be read"
    # For these the problem's mark is behind the mistake, often at the end of the file; the context's mark is at its start.
    mark_is_late = any(part in problem for part in ("unexpected end of stream", "expected ','", "could not find expected ':'"))
    mark = (error.context_mark if mark_is_late else None) or error.problem_mark or error.context_mark
    line, column = (mark.line, mark.column) if mark else (0, 0)
    for part, message, remedy in _MESSAGES:
        if part in problem:
            return _error(file, line, column, f"not valid YAML: {message}", "", remedy)
    return _error(file, line, column, f"not valid YAML: {problem}", "", _CHECK_INDENT)
