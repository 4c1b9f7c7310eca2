"""The nodes of a spec as plain values, with the source location of every key and value.

Values are read as YAML 1.1, as PyYAML resolves it, except where that surprises people: `1e-3` is a number, and
dates and base-60 numbers (`12:30`) stay text. Octal numbers such as `010` are refused.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import yaml
from yaml.constructor import SafeConstructor

from launcher.errors import Problem, SpecError
from launcher.spec.problems import Finding, Path, SourceLocation, named, path_text, shown

_TAG = "tag:yaml.org,2002:"
_EXPONENT = re.compile(r"[-+]?(?:[0-9]{1,20}\.?[0-9]{0,20}|\.[0-9]{1,20})[eE][-+]?[0-9]{1,4}\Z")
_OCTAL = re.compile(r"[-+]?0[0-9_]+\Z")
_MAX_VALUES = 20_000  # after aliases are expanded
_MAX_DEPTH = 64
_MAX_NUMBER = 2**63

_CONSTRUCTOR = SafeConstructor()
_READ_AS = {"bool": "a boolean", "int": "a number", "float": "a number", "null": "nothing"}


@dataclass(frozen=True)
class SourceEntry:
    """A key and its value in a source file, with their locations. `text` is a scalar as it is written; None for mappings and lists."""

    key: SourceLocation
    value: SourceLocation
    text: str | None = None
    quoted: bool = False


@dataclass
class Document:
    """A spec as it is written: plain values, the source of each, and the findings so far."""

    value: Any
    sources: dict[Path, SourceEntry]
    findings: list[Finding] = field(default_factory=list)
    # Paths whose value is unusable because of a finding; `value` lacks them.
    unusable: set[Path] = field(default_factory=set)

    def location(self, path: Path, on: Literal["key", "value"] = "value") -> SourceLocation:
        """Return the source location of a path, or of its nearest parent that the file has."""
        length = next(length for length in range(len(path), -1, -1) if path[:length] in self.sources)
        source = self.sources[path[:length]]
        # An empty value has no location of its own.
        of_key = length < len(path) or on == "key" or (source.text == "" and not source.quoted)
        return source.key if of_key else source.value

    def problem(self, finding: Finding) -> Problem:
        """Return the finding with its source location."""
        location = finding.location or self.location(finding.path, finding.on)
        path = path_text(finding.path)
        return Problem(location.file, location.line, location.column, path, finding.message, finding.expected, finding.remedy)


class _Unusable(Exception):  # noqa: N818 - not an error of the program: it is caught in this module
    """A value cannot be used; `finding` says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


class Reader:
    """Turns one tree of nodes into a Document. Its state is the number of values read and the nodes around the current one.

    Locations are shifted by `line` and `column`, for text that does not start at a file's first character.
    """

    def __init__(self, file: str, line: int = 1, column: int = 1) -> None:
        self._document = Document(None, {})
        self._file = file
        self._line = line
        self._column = column
        self._ancestors: list[yaml.Node] = []
        self._count = 0

    def read(self, node: yaml.Node, path: Path = (), key: SourceLocation | None = None) -> Document:
        """Return a Document with the node's value at `path`, and the sources of all values in it.

        Raises SpecError when the value as a whole is unusable, or aliases make it endless.
        """
        try:
            self._document.value = self._value(node, path, key or self._location(node))
        except _Unusable as unusable:
            self._document.sources.setdefault((), SourceEntry(self._location(node), self._location(node)))
            raise SpecError([self._document.problem(unusable.finding)]) from None
        return self._document

    def _location(self, node: yaml.Node) -> SourceLocation:
        mark = node.start_mark
        return SourceLocation(self._file, mark.line + self._line, mark.column + (self._column if mark.line == 0 else 1))

    def _value(self, node: yaml.Node, path: Path, key: SourceLocation) -> Any:
        location = self._location(node)
        self._check_aliases(node, path)
        if isinstance(node, yaml.ScalarNode):
            self._document.sources[path] = SourceEntry(key, location, node.value, quoted=bool(node.style))
            return scalar(node, path)
        self._document.sources[path] = SourceEntry(key, location)
        self._ancestors.append(node)
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            return self._sequence(node, path)
        finally:
            self._ancestors.pop()

    def _check_aliases(self, node: yaml.Node, path: Path) -> None:
        """Count a value, and limit how far aliases can multiply and nest."""
        self._count += 1
        if self._count > _MAX_VALUES:
            message = f"aliases make this more than {_MAX_VALUES} values"
        elif any(node is outer for outer in self._ancestors):
            message = "an alias refers to a value that contains it"
        elif len(self._ancestors) > _MAX_DEPTH:
            message = f"aliases nest values deeper than {_MAX_DEPTH} levels"
        else:
            return
        location = self._location(node)
        raise SpecError([Problem(location.file, location.line, location.column, path_text(path), message, "", "write the values out")])

    def _sequence(self, node: yaml.Node, path: Path) -> list[Any]:
        if node.tag != f"{_TAG}seq":
            raise _Unusable(_unknown_tag(node, path))
        values: list[Any] = []
        for index, item in enumerate(node.value):
            below = (*path, index)
            try:
                values.append(self._value(item, below, self._location(item)))
            except _Unusable as unusable:
                self._note_unusable(below, unusable)
                values.append(None)  # the items after it keep their index
        return values

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        if node.tag != f"{_TAG}map":
            raise _Unusable(_unknown_tag(node, path))
        values: dict[str, Any] = {}
        for name, (location, value_node) in self._pairs(node, path).items():
            below = (*path, name)
            try:
                values[name] = self._value(value_node, below, location)
            except _Unusable as unusable:
                self._note_unusable(below, unusable)
        return values

    def _note_unusable(self, path: Path, unusable: _Unusable) -> None:
        self._document.findings.append(unusable.finding)
        self._document.unusable.add(path)

    def _pairs(self, node: yaml.MappingNode, path: Path) -> dict[str, tuple[SourceLocation, yaml.Node]]:
        """Return the mapping's keys with their locations and values; its own keys win over those merged by `<<`."""
        pairs: dict[str, tuple[SourceLocation, yaml.Node]] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            location = self._location(key_node)
            if key_node.tag == f"{_TAG}merge":
                merged += value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                continue
            name = self._key(key_node, path, location)
            if name in pairs:
                first = pairs[name][0].line
                message = f"the key {named(str(name))} is a duplicate; the first is in line {first}"
                self._note((*path, name), location, message, "each key once", "remove one of the two")
            elif name is not None:
                pairs[name] = (location, value_node)
        self._ancestors.append(node)
        for source in merged:
            if not isinstance(source, yaml.MappingNode):
                message = "the value of `<<` is not a mapping"
                self._note(path, self._location(source), message, "a mapping, or a list of mappings", "name a mapping")
            else:
                self._check_aliases(source, path)
                pairs = self._pairs(source, path) | pairs
        self._ancestors.pop()
        return pairs

    def _key(self, node: yaml.Node, path: Path, location: SourceLocation) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            self._note(path, location, "a key is a list or a mapping", "a word", "write `key: value`")
            return None
        text = str(node.value)
        if has_invalid_characters(text):
            self._note(path, location, f"the key {shown(text)} holds characters that are not text", "a word", "remove them")
            return None
        kind = _READ_AS.get(node.tag.removeprefix(_TAG))
        if kind is None or node.style:
            return text
        message = f"the key `{text}` is read as {kind}" if text else "a key is empty"
        self._note(path, location, message, "a word", f'write "{text}" in quotes' if text else "write the key before the colon")
        return None

    def _note(self, path: Path, location: SourceLocation, message: str, expected: str, remedy: str) -> None:
        finding = Finding(path, message, expected, remedy, on="key", location=location)
        if finding not in self._document.findings:  # an alias may repeat it
            self._document.findings.append(finding)


def has_invalid_characters(text: str) -> bool:
    """Return whether a text has characters that cannot be passed to a process: NUL ends a string in C, lone surrogates cannot be encoded."""
    return "\0" in text or any("\ud800" <= character <= "\udfff" for character in text)


def scalar(node: yaml.ScalarNode, path: Path) -> Any:
    """Return a scalar's value."""
    kind, text = node.tag.removeprefix(_TAG), str(node.value)
    plain = not node.style  # parsers give None or ""
    if kind in {"int", "float"} and plain:
        if ":" in text:  # base 60 in YAML 1.1, which is never intended
            return text
        return _number(node, kind, path)
    if kind in {"null", "bool"} and (not plain or text.lower() in {"", "~", "null", *SafeConstructor.bool_values}):
        return SafeConstructor.bool_values.get(text.lower()) if kind == "bool" else None
    if kind == "str" and plain and _EXPONENT.match(text) and math.isfinite(float(text)):
        return float(text)
    if kind in {"str", "timestamp", "value", "merge"}:
        if has_invalid_characters(text):
            raise _Unusable(Finding(path, f"{shown(text)} holds characters that are not text", "text", "remove them"))
        return text
    raise _Unusable(_unknown_tag(node, path))


def _number(node: yaml.ScalarNode, kind: str, path: Path) -> int | float:
    text = str(node.value)
    if _OCTAL.match(text):
        meant = text.replace("_", "").lstrip("+-").lstrip("0") or "0"
        message = f"`{text}` starts with a zero, which makes it an octal number in some YAML readers"
        raise _Unusable(Finding(path, message, "a number without leading zeros", f'write {meant}, or "{text}" in quotes if it is a string'))
    try:
        number = _CONSTRUCTOR.construct_yaml_int(node) if kind == "int" else _CONSTRUCTOR.construct_yaml_float(node)
    except (ValueError, IndexError):
        number = math.inf
    if not -_MAX_NUMBER < number < _MAX_NUMBER:  # also NaN
        message = f"`{text if len(text) < 40 else text[:37] + '...'}` is not a usable number"
        raise _Unusable(Finding(path, message, "a finite number below 2^63", "write another number"))
    return number


def _unknown_tag(node: yaml.Node, path: Path) -> Finding:
    tag = str(node.tag).replace(_TAG, "!!")
    return Finding(path, f"the YAML tag {shown(tag)} is not used in specs", "a plain value", "remove the tag")


def without(value: Any, paths: Iterable[Path]) -> Any:
    """Return a copy of the value without the values at the paths."""
    left_out = set(paths)

    def copy(part: Any, path: Path) -> Any:
        if isinstance(part, dict):
            return {key: copy(below, (*path, key)) for key, below in part.items() if (*path, key) not in left_out}
        return [copy(below, (*path, index)) for index, below in enumerate(part)] if isinstance(part, list) else part

    return copy(value, ())
