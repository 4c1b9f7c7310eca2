"""pydantic's errors in a user's words: what is wrong with which value, what was expected, what to do."""

import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic_core import ErrorDetails

from launcher.spec import sections
from launcher.spec.document import Source
from launcher.spec.problems import Finding, Path, Wrong, any_of, nearest, path_text, shown

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}

# Lower and upper bounds: error type -> how the bound is written, by the key in the error's context.
_BOUNDS = {
    "greater_than": ("gt", "above {}"),
    "greater_than_equal": ("ge", "{} or more"),
    "less_than": ("lt", "below {}"),
    "less_than_equal": ("le", "at most {}"),
}


def findings(
    errors: Iterable[ErrorDetails],
    model: sections.Model,
    sources: Mapping[Path, Source],
    prefix: Path = (),
) -> list[Finding]:
    """Return a finding for each error of a model that stands at `prefix` in the document."""
    return [_finding(error, model, sources, prefix) for error in errors]


def meant_key(error: ErrorDetails, model: sections.Model) -> Path | None:
    """Return the path that an unknown key was probably meant to be."""
    if error["type"] != "extra_forbidden":
        return None
    path = document_path(error)
    section = sections.section_at(model, path[:-1])
    meant = nearest(str(path[-1]), sections.keys(section)) if section else None
    return (*path[:-1], meant) if meant else None


def document_path(error: ErrorDetails, prefix: Path = ()) -> Path:
    """Return the path of the document that an error is about."""
    return (*prefix, *(part for part in error["loc"] if part != "[key]"))


def _finding(error: ErrorDetails, model: sections.Model, sources: Mapping[Path, Source], prefix: Path) -> Finding:
    path = document_path(error, prefix)
    kind = error["type"]
    context = error.get("ctx", {})
    if isinstance(wrong := context.get("error"), Wrong):
        return Finding(path, wrong.message, wrong.expected, wrong.remedy)
    if kind == "extra_forbidden":
        return _unknown_key(path, model, prefix)
    if kind == "missing":
        where = f" in `{path_text(path[:-1])}`" if len(path) > 1 else ""
        return Finding(path, f"`{path[-1]}` is missing{where}", "", f"add `{path[-1]}: ...`")
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        bound = _number_text(context[key])
        return Finding(path, f"{shown(error['input'])} is out of range", words.format(bound), _bounded(kind, bound))
    if kind == "literal_error":
        return _unknown_choice(path, error["input"], sections.choices(model, path[len(prefix) :]), sources.get(path))
    if kind in {"string_too_short", "too_short"}:
        return Finding(path, "it is empty", "at least one character" if "string" in kind else "at least one item", "fill it in or leave it out")
    if kind in _EXPECTED:
        return _wrong_type(path, error["input"], _EXPECTED[kind], sources.get(path))
    return Finding(path, f"{shown(error['input'])} is wrong: {error['msg']}", "", "see docs/spec.md")


def _unknown_key(path: Path, model: sections.Model, prefix: Path) -> Finding:
    key = str(path[-1])
    section = sections.section_at(model, path[len(prefix) : -1])
    known = sections.keys(section) if section else ()
    expected = f"one of {', '.join(known)}" if known else "no keys"
    if meant := nearest(key, known):
        return Finding(path, f"unknown key `{key}`", expected, f"write `{meant}`", on="key")
    elsewhere = [(*prefix, *place) for place in sections.places_of(model, key)]
    if elsewhere:
        places = any_of(f"`{path_text(place)}`" for place in elsewhere[:4])
        return Finding(path, f"unknown key `{key}`", expected, f"move it: {places} takes it", on="key")
    return Finding(path, f"unknown key `{key}`", expected, "remove it", on="key")


def _unknown_choice(path: Path, value: Any, known: tuple[str, ...], source: Source | None) -> Finding:
    expected = any_of(str(choice) for choice in known)
    if not isinstance(value, str):
        return _wrong_type(path, value, expected, source)
    meant = nearest(value, known)
    return Finding(path, f"{shown(value)} is not one of the choices", expected, f"write {meant}" if meant else "choose one of them")


def _wrong_type(path: Path, value: Any, expected: str, source: Source | None) -> Finding:
    key = str(path[-1]) if path else ""
    if value is None:
        return Finding(path, f"`{path_text(path)}` has no value", expected, "give it a value or leave the key out")
    text = source.text if source and source.text is not None else None
    described, remedy = next(
        (describe(key, value, text) for fits, describe in _TYPE_MISTAKES if fits(value, expected, bool(source and source.quoted))),
        (_kind(value, text), f"write {expected}"),
    )
    return Finding(path, described, expected, remedy)


_Fits = Callable[[Any, str, bool], bool]
_Describe = Callable[[str, Any, str | None], tuple[str, str]]


def _is_number(text: Any) -> bool:
    try:
        return isinstance(text, str) and abs(float(text.replace(",", "").replace("_", ""))) < 1e15  # noqa: PLR2004 - what prints in full
    except ValueError:
        return False


# The mistakes people make with types: when one fits (value, expected, quoted), how it and its remedy read.
_TYPE_MISTAKES: tuple[tuple[_Fits, _Describe], ...] = (
    (
        lambda value, expected, _: expected == "text" and isinstance(value, bool | int | float),
        lambda _, value, text: (_kind(value, text), f'write "{text if text is not None else shown(value)}" in quotes'),
    ),
    (
        lambda value, expected, quoted: quoted and expected == "a whole number" and isinstance(value, str) and value.isdecimal(),
        lambda _, value, text: (f"{shown(value)} is text", f"write {value} without quotes"),
    ),
    (
        lambda value, expected, _: expected == "a whole number" and isinstance(value, float),
        lambda _, value, text: (
            f"{text if text is not None else shown(value)} is a number with a fraction or an exponent",
            f"write {round(value)}" if abs(value) < 1e15 else "write a whole number",  # noqa: PLR2004 - what prints in full
        ),
    ),
    (
        lambda value, expected, _: expected in {"a whole number", "a number"} and _is_number(value),
        lambda _, value, text: (f"{shown(value)} is text", f"write {_number_text(float(value.replace(',', '').replace('_', '')))}"),
    ),
    (
        lambda value, expected, _: expected == "a list" and isinstance(value, str),
        lambda key, value, text: (f"{shown(value)} is text", f"write {key}: {_as_list(value)}"),
    ),
    (
        lambda value, expected, _: expected == "true or false" and isinstance(value, str),
        lambda _, value, text: (f"{shown(value)} is text", "write true or false without quotes"),
    ),
    (
        lambda value, expected, _: expected == "a mapping" and isinstance(value, list),
        lambda _, value, text: ("this is a list", "write lines of `key: value` without dashes"),
    ),
)


def _kind(value: Any, text: str | None) -> str:
    written = f"`{text}`" if text is not None else shown(value)
    if isinstance(value, bool):
        return f"{written} is read as the boolean {shown(value)}"
    if isinstance(value, int | float):
        return f"{written} is a number"
    return f"{shown(value)} is text" if isinstance(value, str) else f"this is {shown(value)}"


def _as_list(command: str) -> str:
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    return f"[{', '.join(word if word.replace('-', '').replace('.', '').replace('_', '').replace('/', '').isalnum() else shown(word) for word in words)}]"


def _number_text(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else repr(float(number))


def _bounded(kind: str, bound: str) -> str:
    return f"write {bound}" if kind.endswith("equal") else "write a number in range"
