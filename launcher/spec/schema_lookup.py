"""Lookup of a path in the models: its section, the section's keys, and other paths for a misplaced key."""

import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from launcher.spec.problems import Path

Model = type[BaseModel]


def field_name(name: str, field: FieldInfo) -> str:
    """Return a field's name as users write it."""
    return field.alias or name


def section_of(annotation: Any) -> Model | None:
    """Return the section that is a field's value, or an item of it, or None."""
    below = _unwrapped(annotation)
    if get_origin(below) is list:
        below = _unwrapped(get_args(below)[0])
    return below if _is_section(below) else None


def keys(model: Model) -> tuple[str, ...]:
    """Return a section's keys as users write them."""
    return tuple(field_name(name, field) for name, field in model.model_fields.items())


def section_at(model: Model, path: Path) -> Model | None:
    """Return the section that a path leads to, or None when there is none."""
    annotation: Any = model
    for part in path:
        if isinstance(part, int):
            annotation = next(iter(get_args(_unwrapped(annotation))), None)
            continue
        below = _unwrapped(annotation)
        if get_origin(below) is dict:
            annotation = get_args(below)[1]
            continue
        if not _is_section(below):
            return None
        field = _field(below, part)
        if field is None:
            return None
        annotation = field.annotation
    below = _unwrapped(annotation)
    return below if _is_section(below) else None


def choices(model: Model, path: Path) -> tuple[str, ...]:
    """Return the allowed values of a field, or of an item of it; nothing for a field without a fixed set of values."""
    of_item = isinstance(path[-1], int)
    named = path[:-1] if of_item else path
    section = section_at(model, named[:-1])
    if section is None:
        return ()
    field = _field(section, named[-1])
    annotation = _unwrapped(field.annotation) if field else None
    if of_item and get_origin(annotation) is list:
        annotation = _unwrapped(get_args(annotation)[0])
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def paths_of(model: Model, key: str, path: Path = ()) -> Iterator[Path]:
    """Yield every path of the document that ends in a key, those nearest to the top first; none inside lists and mappings of any keys."""
    deeper: list[tuple[Model, Path]] = []
    for name, field in model.model_fields.items():
        below = (*path, field_name(name, field))
        if below[-1] == key:
            yield below
        section = _unwrapped(field.annotation)
        if _is_section(section):
            deeper.append((section, below))
    for section, below in deeper:
        yield from paths_of(section, key, below)


def _field(section: Model, key: object) -> FieldInfo | None:
    return next((field for name, field in section.model_fields.items() if field_name(name, field) == key), None)


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _unwrapped(annotation: Any) -> Any:
    """Return an annotation without Annotated and Optional; of a union with one section, the section."""
    if hasattr(annotation, "__metadata__"):
        return _unwrapped(annotation.__origin__)
    if get_origin(annotation) in {Union, types.UnionType}:
        members = [_unwrapped(member) for member in get_args(annotation) if member is not type(None)]
        chosen = members if len(members) == 1 else [member for member in members if _is_section(member)]
        return chosen[0] if len(chosen) == 1 else annotation
    return annotation
