"""Reads the fields of a TFJob with checks of their types, and collects remarks and problems."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from launcher.errors import Problem, nearest
from launcher.spec import names
from launcher.spec.document import Document
from launcher.spec.problems import FieldError, Finding, Path, path_text, shown


@dataclass(frozen=True)
class Remark:
    """A remark about one field: how it is converted, and what to do about that."""

    line: int
    path: str
    message: str
    remedy: str = ""


class FieldReader:
    """Reads the fields of one TFJob. Its state is the remarks and problems so far."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.remarks: list[Remark] = []
        self.problems: list[Problem] = []
        for finding in document.findings:
            self.problems.append(document.problem(finding))

    def line(self, path: Path) -> int:
        """Return the line of a field."""
        return self.document.location(path, "key").line

    def add_remark(self, path: Path, message: str, remedy: str = "") -> None:
        """Add a remark about a field."""
        self.remarks.append(Remark(self.line(path), path_text(path), message, remedy))

    def add_problem(self, path: Path, message: str, expected: str, remedy: str) -> None:
        """Add a problem, which prevents the import."""
        problem = self.document.problem(Finding(path, message, expected, remedy))
        if problem not in self.problems:
            self.problems.append(problem)

    def add_field_error(self, path: Path, error: FieldError) -> None:
        """Add a problem: the spec does not accept a field's value."""
        self.add_problem(path, error.message, error.expected, error.remedy)

    def value(self, path: Path) -> Any:
        """Return the value at a path, or None."""
        value = self.document.value
        for part in path:
            if isinstance(value, dict):
                value = value.get(str(part))
            elif isinstance(value, list) and isinstance(part, int) and part < len(value):
                value = value[part]
            else:
                return None
        return value

    def has(self, path: Path) -> bool:
        """Return whether the file has a field, with a valid value or not."""
        return path in self.document.sources or path in self.document.unusable

    def mapping(self, path: Path) -> dict[str, Any]:
        """Return a mapping; an empty one if the field is missing."""
        return self._typed(path, dict, "a mapping", "write lines of `key: value`") or {}

    def items(self, path: Path) -> list[Any]:
        """Return a list; an empty one if the field is missing."""
        return self._typed(path, list, "a list", "write a list") or []

    def string(self, path: Path) -> str | None:
        """Return a string, or None if the field is missing."""
        source = self.document.sources.get(path)
        remedy = f"write {shown(source.text)} in quotes" if source and source.text else "write a string"
        string: str | None = self._typed(path, str, "a string", remedy)
        return string

    def labels(self, path: Path) -> dict[str, str]:
        """Return labels or annotations without the reserved ones, for which it adds remarks."""
        labels: dict[str, str] = {}
        for key in self.mapping(path):
            if names.is_reserved_label(key):
                remedy = "give it another key, if something selects by it or reads it"
                self.add_remark((*path, key), f"the launcher itself sets {path[-1]} of this kind: left out", remedy)
            elif (value := self.string((*path, key))) is not None:
                labels[key] = value
        return labels

    def name(self, path: Path) -> str | None:
        """Return the name that an item of a list must have."""
        if not self.mapping(path) and self.value(path) not in ({}, None):
            return None  # not a mapping, for which `mapping` has added a problem
        name = self.string((*path, "name"))
        if name is None and not self.has((*path, "name")):
            self.add_problem(path, f"an item of {path[-2]} has no name", "`name`", "add it")
        return name

    def strings(self, path: Path) -> list[str]:
        """Return a list of strings."""
        strings = [self.string((*path, index)) for index in range(len(self.items(path)))]
        return [string for string in strings if string is not None]

    def boolean(self, path: Path) -> bool | None:
        """Return true or false, or None if the field is missing."""
        boolean: bool | None = self._typed(path, bool, "true or false", "write true or false")
        return boolean

    def integer(self, path: Path, minimum: int) -> int | None:
        """Return a whole number of `minimum` or more, or None if the field is missing."""
        value = self.value(path)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= minimum):
            return value
        self.add_problem(
            path, f"{shown(value)} is not a number of {minimum} or more", f"a whole number of {minimum} or more", "write the number"
        )
        return None

    def _typed(self, path: Path, kind: type, expected: str, remedy: str) -> Any:
        value = self.value(path)
        if value is None or isinstance(value, kind):
            return value
        if path not in self.document.unusable:
            self.add_problem(path, f"{shown(value)} is not {expected}", expected, remedy)
        return None


def grouped(remarks: list[Remark]) -> Iterator[tuple[str, str, Remark]]:
    """Yield the lines and the paths of fields with the same remark, and the first such remark."""
    groups: dict[tuple[str, str], list[Remark]] = {}
    for remark in sorted(remarks, key=lambda remark: remark.line):
        groups.setdefault((remark.message, remark.remedy), []).append(remark)
    for group in groups.values():
        lines = dict.fromkeys(str(remark.line) for remark in group)
        yield ", ".join(lines), ", ".join(remark.path for remark in group), group[0]


@dataclass(frozen=True)
class LeftOut:
    """The row of a field that has no counterpart in a spec: the remark about it, which gives the reason."""

    message: str
    remedy: str = ""


def as_valid(model: type[BaseModel], item: dict[str, Any]) -> dict[str, Any] | None:
    """Return a part of a spec, or None if it is not valid: then it can only be an override."""
    try:
        model.model_validate(item)
    except ValidationError:
        return None
    return item


class HasReader(Protocol):
    """The result of reading a part of a TFJob."""

    @property
    def reader(self) -> FieldReader:
        """Return the reader of the TFJob."""


Target = TypeVar("Target", bound=HasReader)
# Converts the field at a path.
Handler = Callable[[Target, Path], None]
Table = Mapping[str, Handler[Target] | LeftOut]


def section(table: Table[Target]) -> Handler[Target]:
    """Return the handler of a field that is a mapping with a table of its own."""
    return lambda target, path: walk(path, table, target)


def read_elsewhere(_target: HasReader, _path: Path) -> None:
    """Do nothing with a field that another function reads, or that needs no conversion."""


def walk(path: Path, table: Table[Target], target: Target) -> None:
    """Convert every field of a mapping by its row in the table; a field without a row is not a field of a TFJob."""
    reader = target.reader
    for key, value in reader.mapping(path).items():
        row = table.get(key)
        below = (*path, key)
        if value is None:
            continue
        if row is None:
            meant = nearest(key, table)
            reader.add_remark(
                below,
                "is not a field of a TFJob here, and is left out",
                f"write {meant}, if that is meant" if meant else "check what it was for",
            )
        elif isinstance(row, LeftOut):
            reader.add_remark(below, row.message, row.remedy)
        else:
            row(target, below)
