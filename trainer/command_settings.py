"""The settings of the parent of a user's program, from TRAINER_SETTINGS, read with only the standard library.

trainer/settings.py describes the settings; its models need pydantic, which an image of a user's own lacks. Settings of the built-in
trainer are passed on unchanged.
"""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any, get_args

from trainer.exit_codes import OnStall, RestartWhen
from trainer.run_end import RunEndRules
from trainer.strategies import Strategy
from trainer.tf_config import ConfigurationError

SETTINGS_VARIABLE = "TRAINER_SETTINGS"


@dataclass(frozen=True)
class CommandSettings:
    """The keys of TrainerSettings, with the same defaults; times are seconds."""

    run: str
    run_dir: str
    scratch_dir: str
    strategy: Strategy = "single"
    spec_digest: str = ""
    local_replicas: int = 1
    has_evaluator: bool = False
    max_restarts: int = 10
    restarts: Any = None  # role -> a mapping of what trainer.settings.Restarts has
    start_timeout: float = 600
    orphan_timeout: float = 600
    stall_timeout: Any = None  # seconds
    on_stall: Any = None
    save_timeout: Any = None  # seconds
    grace_period: Any = None  # seconds
    ending: Any = None  # a mapping of what trainer.run_end.RunEndRules has
    unsupervised: Any = None  # a list of roles
    train: Any = None


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0


_ENDING = tuple(field.name for field in fields(RunEndRules))


def _is_ending(value: Any) -> bool:
    return isinstance(value, dict) and "port" in value and set(value) <= set(_ENDING)


_RESTARTS: dict[str, Callable[[Any], bool]] = {
    "restart": lambda value: isinstance(value, str) and value in get_args(RestartWhen),
    "max_restarts": lambda value: _is_count(value, 0),
}


def _is_restarts(value: Any) -> bool:
    """Return whether it is a mapping of roles to mappings with the keys of _RESTARTS."""
    per_role = value.values() if isinstance(value, dict) else [None]
    return all(isinstance(rules, dict) and all(key in _RESTARTS and _RESTARTS[key](rules[key]) for key in rules) for rules in per_role)


def _is_list_of_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


# Annotation or key -> the expectation as text, and the check of a value. A key's own entry comes before that of its annotation.
_EXPECTED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "str": ("a text", lambda value: isinstance(value, str)),
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "int": ("an integer, 0 or more", lambda value: _is_count(value, 0)),
    "local_replicas": ("an integer, 1 or more", lambda value: _is_count(value, 1)),
    "float": ("a number of seconds above 0", _is_time),
    "Strategy": (f"one of {', '.join(get_args(Strategy))}", lambda value: isinstance(value, str) and value in get_args(Strategy)),
    "ending": (f"a mapping of {', '.join(_ENDING)} or nothing", lambda value: value is None or _is_ending(value)),
    "restarts": (f"a mapping of roles to {' and '.join(_RESTARTS)}, or nothing", lambda value: value is None or _is_restarts(value)),
    **dict.fromkeys(
        ("stall_timeout", "save_timeout", "grace_period"),
        ("a number of seconds above 0, or nothing", lambda value: value is None or _is_time(value)),
    ),
    "on_stall": (f"one of {', '.join(get_args(OnStall))}, or nothing", lambda value: value is None or value in get_args(OnStall)),
    "unsupervised": ("a list of roles, or nothing", lambda value: value is None or _is_list_of_strings(value)),
    "Any": ("", lambda _value: True),
}


def load(path: str | None) -> tuple[Any, str] | None:
    """Return the document in a file, `-` for stdin, else in TRAINER_SETTINGS, and its origin; None if there is none.

    Raises ConfigurationError.
    """
    if path:
        file = "/dev/stdin" if path == "-" else path
        return read_document(file), file
    text = os.environ.get(SETTINGS_VARIABLE)
    return (parse_document(text), SETTINGS_VARIABLE) if text else None


def parse_document(text: str) -> Any:
    """Parse the text of TRAINER_SETTINGS. Raises ConfigurationError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError([f"{SETTINGS_VARIABLE} is not valid JSON: {error}; correct it there"]) from None


def read_document(path: str) -> Any:
    """Read and parse a settings file, YAML or JSON. Raises ConfigurationError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise ConfigurationError([f"the settings file {path!r} cannot be read: {reason}; expected a YAML or JSON file"]) from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _yaml(text, path)


def _yaml(text: str, path: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise ConfigurationError([f"{path} is not valid JSON, and this Python has no PyYAML to read YAML with; write it as JSON"]) from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigurationError([f"{path} is not valid YAML: {' '.join(str(error).split())}; correct it there"]) from None


def settings_of(document: Any, origin: str) -> CommandSettings:
    """Return the settings in a document. Raises ConfigurationError with every problem at once."""
    known = {field.name: field for field in fields(CommandSettings)}
    if not isinstance(document, dict):
        raise ConfigurationError([f"{origin} is {type(document).__name__}; expected an object with the keys run, run_dir, scratch_dir"])
    problems = [f"{origin}.{name} is missing; add it" for name, field in known.items() if field.default is MISSING and name not in document]
    for name, value in document.items():
        problems += _problem(f"{origin}.{name}", value, known.get(name), list(known))
    if problems:
        raise ConfigurationError(problems)
    return CommandSettings(**document)


def _problem(path: str, value: Any, field: Field[Any] | None, known: list[str]) -> list[str]:
    if field is None:
        similar = difflib.get_close_matches(path.rpartition(".")[2], known, n=1)
        remedy = f"did you mean {similar[0]!r}?" if similar else "remove it"
        return [f"{path} is an unknown key; expected one of {', '.join(known)}; {remedy}"]
    expected, fits = _EXPECTED.get(field.name) or _EXPECTED[str(field.type)]
    shown = repr(value)
    return [] if fits(value) else [f"{path} is {shown if len(shown) <= 60 else shown[:57] + '...'}; expected {expected}; correct it"]
