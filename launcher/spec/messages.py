"""Translates pydantic's errors for users: the wrong value, what was expected, and the remedy."""

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic_core import ErrorDetails

from launcher.errors import nearest
from launcher.spec import schema_lookup
from launcher.spec.document import SourceEntry
from launcher.spec.fields import KINDS_OF_VALUE
from launcher.spec.problems import FieldError, Finding, Path, any_of, named, path_text, shown
from launcher.spec.role_programs import ROLES

_PRINTS_IN_FULL = 1e15
_PLAIN_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*\Z")

# Section -> the field that people mean if they write a single value for the section.
_SHORTHANDS = {
    **dict.fromkeys(ROLES, "replicas"),
    **dict.fromkeys(("checkpoint", "evaluate", "summaries"), "every_steps"),
    "train": "workload",
    "learning_rate": "initial",
    "early_stopping": "metric",
    "sync": "replicas_to_aggregate",
    "storage": "size",
    "tensorboard": "port",
}

# Section, and the boolean that people write for it -> the remedy.
_SWITCHES = {
    "export": {False: "write `export: {formats: []}`, which exports nothing", True: "write `export: {}`"},
    "tensorboard": {True: "write `tensorboard: {}`, or leave the key out"},
}

# Keys of Keras and of other launchers -> the remedy.
_IN_THE_MODEL = "give it to the model's `compile`, in the code that `train.workload` names"
_WRITE_WORKERS, _WRITE_GPUS = "write `roles: {worker: {replicas: 4}}`", "write `gpus` under each role: `roles: {worker: {gpus: 1}}`"
_FOREIGN_KEYS = {
    **dict.fromkeys(("num_train_epochs", "training_epochs"), "write `train.epochs`"),
    **dict.fromkeys(("lr", "base_lr"), "write `train.learning_rate: {initial: 0.001}`"),
    **dict.fromkeys(("optimizer", "loss", "metrics"), _IN_THE_MODEL),
    "callbacks": "give the module of `train.workload` a function `callbacks` that returns them",
    "class_weight": "write `class_weight = {0: 1.0, 1: 5.0}` beside `train_data`, in the code that `train.workload` names",
    "sample_weight": "let `train_data` return (inputs, targets, sample_weights)",
    **dict.fromkeys(("validation_data", "validation_split"), "give the module of `train.workload` an `eval_data`"),
    **dict.fromkeys(("num_workers", "workers"), _WRITE_WORKERS),
    **dict.fromkeys(("num_ps", "parameter_servers"), "write `roles: {ps: {replicas: 2}}`"),
    **dict.fromkeys(("gpu", "num_gpus"), _WRITE_GPUS),
    "model": "write `train.workload`: package.module:name of the model, or of a function that returns it",
}

# Sample values for missing fields.
_SAMPLES = {"version": "1", "name": "my-run", "workload": "mnist_mlp", "replicas_to_aggregate": "2", "secret": "my-secret", "key": "token"}

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}

# Lower and upper bounds: error type -> the key of the bound in the error's context, and the text for it.
_BOUNDS = {
    "greater_than": ("gt", "above {}"),
    "greater_than_equal": ("ge", "{} or more"),
    "less_than": ("lt", "below {}"),
    "less_than_equal": ("le", "at most {}"),
}

# The same for the length of a list.
_LENGTHS = {"too_short": ("min_length", "at least"), "too_long": ("max_length", "at most")}


def findings(
    errors: Iterable[ErrorDetails],
    model: schema_lookup.Model,
    sources: Mapping[Path, SourceEntry],
    prefix: Path = (),
) -> list[Finding]:
    """Return a finding for each error of a model; the model's value is at `prefix` in the document."""
    return [_finding(error, model, sources, prefix) for error in errors]


def meant_key(error: ErrorDetails, model: schema_lookup.Model) -> Path | None:
    """Return the path that an unknown key was probably meant to be."""
    if error["type"] != "extra_forbidden":
        return None
    path = document_path(error)
    section = schema_lookup.section_at(model, path[:-1])
    meant = nearest(str(path[-1]), schema_lookup.keys(section)) if section else None
    return (*path[:-1], meant) if meant else None


def document_path(error: ErrorDetails, prefix: Path = ()) -> Path:
    """Return the document's path of an error."""
    *path, last = [part for part in error["loc"] if part not in KINDS_OF_VALUE] or ("[key]",)
    # pydantic appends "[key]" when the key itself is wrong; an unknown key may have that name, too.
    if last != "[key]" or error["type"] == "extra_forbidden":
        path.append(last)
    return (*prefix, *path)


def _finding(error: ErrorDetails, model: schema_lookup.Model, sources: Mapping[Path, SourceEntry], prefix: Path) -> Finding:
    path = document_path(error, prefix)
    kind = error["type"]
    context = error.get("ctx", {})
    if isinstance(field_error := context.get("error"), FieldError):
        return Finding(path, field_error.message, field_error.expected, field_error.remedy)
    if kind == "extra_forbidden":
        return _unknown_key(path, model, prefix)
    if kind == "missing":
        where = f" in `{path_text(path[:-1])}`" if len(path) > 1 else ""
        return Finding(path, f"`{path[-1]}` is missing{where}", "", f"add `{path[-1]}: {_SAMPLES.get(str(path[-1]), '...')}`")
    if kind in _BOUNDS:
        key, template = _BOUNDS[kind]
        bound = _number_text(context[key])
        return Finding(
            path,
            f"{shown(error['input'])} is out of range",
            template.format(bound),
            f"write {bound}" if kind.endswith("equal") else "write a number in range",
        )
    if kind == "multiple_of":
        unit, value = context["multiple_of"], error["input"]
        remedy = f"write {_number_text((value // unit + 1) * unit)}"
        return Finding(path, f"{shown(value)} is not a multiple of {unit}", f"a multiple of {unit}", remedy)
    if kind in _LENGTHS and context["actual_length"]:
        key, template = _LENGTHS[kind]
        expected = f"{template} {context[key]} items"
        return Finding(path, f"it has {context['actual_length']} items", expected, f"give {expected}")
    if kind == "literal_error":
        return _unknown_choice(path, error["input"], schema_lookup.choices(model, path[len(prefix) :]), sources.get(path))
    if kind in {"string_too_short", "too_short"}:
        return Finding(
            path, "it is empty", "at least one character" if "string" in kind else "at least one item", "fill it in or leave it out"
        )
    if kind in _EXPECTED:
        return _wrong_type(path, error["input"], _EXPECTED[kind], sources.get(path))
    return Finding(path, f"{shown(error['input'])} is wrong: {error['msg']}", "", "see docs/spec.md")


def _unknown_key(path: Path, model: schema_lookup.Model, prefix: Path) -> Finding:
    key = str(path[-1])
    section = schema_lookup.section_at(model, path[len(prefix) : -1])
    known = schema_lookup.keys(section) if section else ()
    expected = f"one of {', '.join(known)}" if known else "no keys"
    if meant := nearest(key, known):
        return Finding(path, f"unknown key {named(key)}", expected, f"write `{meant}`", on="key")
    if remedy := _FOREIGN_KEYS.get(key.lower().replace("-", "_")):
        return Finding(path, f"unknown key {named(key)}", expected, remedy, on="key")
    elsewhere = [(*prefix, *other_path) for other_path in schema_lookup.paths_of(model, key)]
    if elsewhere:
        paths = any_of(f"`{path_text(other_path)}`" for other_path in elsewhere[:4])
        return Finding(path, f"unknown key {named(key)}", expected, f"move it: {paths} takes it", on="key")
    return Finding(path, f"unknown key {named(key)}", expected, "remove it", on="key")


def _unknown_choice(path: Path, value: Any, known: tuple[str, ...], source: SourceEntry | None) -> Finding:
    expected = any_of(str(choice) for choice in known)
    if not isinstance(value, str):
        return Finding(path, _kind(value, _written(value, source)), expected, "choose one of them")
    meant = nearest(value, known)
    return Finding(path, f"{shown(value)} is not one of the choices", expected, f"write {meant}" if meant else "choose one of them")


def _wrong_type(path: Path, value: Any, expected: str, source: SourceEntry | None) -> Finding:
    if value is None:
        return Finding(path, f"`{path_text(path)}` has no value", expected, "give it a value or leave the key out")
    written = _written(value, source)
    remedy = f"write {expected}"
    match expected, value:
        case "a string", bool() | int() | float():
            remedy = f'write "{written}" in quotes'
        case "a whole number", float():
            message = f"{written} is a number with a fraction or an exponent"
            return Finding(path, message, expected, f"write {round(value)}" if abs(value) < _PRINTS_IN_FULL else remedy)
        case "a whole number" | "a number", str():
            without_quotes = ", without quotes" if source and source.quoted else ""
            remedy = f"write {meant}{without_quotes}" if (meant := _number_in(value)) else remedy
        case "a list", str():
            remedy = f"write {path[-1]}: {_as_list(value)}"
        case "a mapping", list():
            remedy = "write lines of `key: value`, without dashes"
        case "a mapping", bool() if str(path[-1]) in _SWITCHES:
            remedy = _SWITCHES[str(path[-1])][value]
        case "a mapping", _:
            inner = _SHORTHANDS.get(str(path[-1]))
            remedy = f"write {path[-1]}: {{{inner}: {written}}}" if inner else "write lines of `key: value` below it"
        case "true or false", str():
            remedy = "write true or false, without quotes"
    return Finding(path, _kind(value, written), expected, remedy)


def _written(value: Any, source: SourceEntry | None) -> str:
    """Return a value as the file has it, for values that are read as something else."""
    return source.text if source and source.text is not None and not source.quoted else shown(value)


def _kind(value: Any, written: str) -> str:
    match value:
        case bool():
            return f"{written} is read as the boolean {shown(value)}"
        case int() | float():
            return f"{written} is a number"
        case str():
            return f"{shown(value)} is a string"
    return f"this is {shown(value)}"


def _number_in(text: str) -> str | None:
    """Return the number that a text probably means, such as 1000 for `1,000`."""
    try:
        number = float(text.replace(",", "").replace("_", "").replace(" ", ""))
    except ValueError:
        return None
    return _number_text(number) if abs(number) < _PRINTS_IN_FULL else None


def _as_list(command: str) -> str:
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    return f"[{', '.join(word if _PLAIN_WORD.match(word) else shown(word) for word in words)}]"


def _number_text(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else repr(float(number))
