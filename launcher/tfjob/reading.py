"""One TFJob under way: what its fields hold, checked, and what there is to say about them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from launcher.errors import Problem
from launcher.spec import names
from launcher.spec.document import Document
from launcher.spec.problems import FieldError, Finding, Path, nearest, path_text, shown


@dataclass(frozen=True)
class Remark:
    """Something that a person should know about one field: what becomes of it, and what to do about that."""

    line: int
    path: str
    message: str
    remedy: str = ""


class Reading:
    """Reads the fields of one TFJob. Guards the remarks and problems that come up."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.remarks: list[Remark] = []
        self.problems: list[Problem] = []
        for finding in document.findings:
            self.problems.append(document.problem(finding))

    def line(self, path: Path) -> int:
        """Return the line of a field."""
        return self.document.location(path, "key").line

    def remark(self, path: Path, message: str, remedy: str = "") -> None:
        """Note what becomes of a field."""
        self.remarks.append(Remark(self.line(path), path_text(path), message, remedy))

    def refuse(self, path: Path, message: str, expected: str, remedy: str) -> None:
        """Note what keeps the TFJob from being imported."""
        problem = self.document.problem(Finding(path, message, expected, remedy))
        if problem not in self.problems:
            self.problems.append(problem)

    def refuse_as(self, path: Path, error: FieldError) -> None:
        """Note that a field's value is not what the spec takes."""
        self.refuse(path, error.message, error.expected, error.remedy)

    def value(self, path: Path) -> Any:
        """Return what stands at a path; None where nothing does."""
        found = self.document.value
        for part in path:
            if isinstance(found, dict):
                found = found.get(str(part))
            elif isinstance(found, list) and isinstance(part, int) and part < len(found):
                found = found[part]
            else:
                return None
        return found

    def has(self, path: Path) -> bool:
        """Return whether the file has a field, be its value right or wrong."""
        return path in self.document.sources or path in self.document.unusable

    def mapping(self, path: Path) -> dict[str, Any]:
        """Return a mapping; an empty one where there is none."""
        return self._typed(path, dict, "a mapping", "write lines of `key: value`") or {}

    def items(self, path: Path) -> list[Any]:
        """Return a list; an empty one where there is none."""
        return self._typed(path, list, "a list", "write a list") or []

    def text(self, path: Path) -> str | None:
        """Return a text, or None where there is none."""
        source = self.document.sources.get(path)
        remedy = f"write {shown(source.text)} in quotes" if source and source.text else "write a text"
        text: str | None = self._typed(path, str, "a text", remedy)
        return text

    def labels(self, path: Path) -> dict[str, str]:
        """Return labels or annotations without those that the launcher sets itself, which it notes."""
        found: dict[str, str] = {}
        for key in self.mapping(path):
            if names.is_reserved_label(key):
                remedy = "give it another key, if something selects by it or reads it"
                self.remark((*path, key), f"the launcher sets {path[-1]} of this kind itself: left out", remedy)
            elif (value := self.text((*path, key))) is not None:
                found[key] = value
        return found

    def name(self, path: Path) -> str | None:
        """Return the name that an item of a list must have."""
        if not self.mapping(path) and self.value(path) not in ({}, None):
            return None  # no mapping, as has been said
        name = self.text((*path, "name"))
        if name is None and not self.has((*path, "name")):
            self.refuse(path, f"an item of {path[-2]} has no name", "`name`", "add it")
        return name

    def texts(self, path: Path) -> list[str]:
        """Return a list of texts."""
        found = [self.text((*path, index)) for index in range(len(self.items(path)))]
        return [text for text in found if text is not None]

    def flag(self, path: Path) -> bool | None:
        """Return true or false, or None where there is neither."""
        flag: bool | None = self._typed(path, bool, "true or false", "write true or false")
        return flag

    def number(self, path: Path, least: int) -> int | None:
        """Return a whole number of `least` or more, or None where there is none."""
        value = self.value(path)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= least):
            return value
        self.refuse(path, f"{shown(value)} is not a number of {least} or more", f"a whole number of {least} or more", "write the number")
        return None

    def _typed(self, path: Path, kind: type, expected: str, remedy: str) -> Any:
        value = self.value(path)
        if value is None or isinstance(value, kind):
            return value
        if path not in self.document.unusable:
            self.refuse(path, f"{shown(value)} is not {expected}", expected, remedy)
        return None


def grouped(remarks: list[Remark]) -> Iterator[tuple[str, str, Remark]]:
    """Yield what is said of one field or of several: their lines, their paths, and the first of the remarks, which are alike."""
    groups: dict[tuple[str, str], list[Remark]] = {}
    for remark in sorted(remarks, key=lambda one: one.line):
        groups.setdefault((remark.message, remark.remedy), []).append(remark)
    for alike in groups.values():
        lines = dict.fromkeys(str(remark.line) for remark in alike)
        yield ", ".join(lines), ", ".join(remark.path for remark in alike), alike[0]


@dataclass(frozen=True)
class LeftOut:
    """The row of a field that a spec has no counterpart of: why, and what to do instead."""

    why: str
    instead: str = ""


def as_valid(model: type[BaseModel], form: dict[str, Any]) -> dict[str, Any] | None:
    """Return a part of a spec, None where it is none: then it can only be an override."""
    try:
        model.model_validate(form)
    except ValidationError:
        return None
    return form


class Reads(Protocol):
    """The result of reading a part of a TFJob."""

    @property
    def reading(self) -> Reading:
        """Return what reads the document."""


Target = TypeVar("Target", bound=Reads)
# Deals with the field at a path.
Handler = Callable[[Target, Path], None]
Table = Mapping[str, Handler[Target] | LeftOut]


def section(table: Table[Target]) -> Handler[Target]:
    """Return the handler of a field that is a mapping with a table of its own."""
    return lambda target, path: walk(path, table, target)


def read_elsewhere(_target: Reads, _path: Path) -> None:
    """Do nothing with a field that is read together with others, or says nothing."""


def walk(path: Path, table: Table[Target], target: Target) -> None:
    """Deal with every field of a mapping as its row in the table says; a field without a row is none of a TFJob."""
    reading = target.reading
    for key, value in reading.mapping(path).items():
        row = table.get(key)
        below = (*path, key)
        if value is None:
            continue
        if row is None:
            meant = nearest(key, table)
            reading.remark(
                below, "is no field of a TFJob here, and left out", f"write {meant}, if that is meant" if meant else "see what it was for"
            )
        elif isinstance(row, LeftOut):
            reading.remark(below, row.why, row.instead)
        else:
            row(target, below)
