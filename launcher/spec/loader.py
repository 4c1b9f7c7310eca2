"""Loads a spec file as a ClusterSpec, or reports every problem in it at once."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from launcher.errors import Problem, SpecError, nearest
from launcher.spec import messages, names, role_programs, rules, set_option, syntax
from launcher.spec.document import Document, Reader, without
from launcher.spec.kubernetes import Volume
from launcher.spec.models import ClusterSpec
from launcher.spec.problems import FieldError, Finding, shown
from launcher.spec.problems import Path as SpecPath
from launcher.spec.rule_context import RuleContext, resolved
from trainer.settings import Train
from trainer.workloads import catalog

# Values in place of required ones that are missing or wrong, while the rest is checked.
_PLACEHOLDERS = {"version": 1, "name": "run", "workload": "mnist_mlp", "replicas_to_aggregate": 1, "secret": "secret", "key": "key"}
_DIGEST_LENGTH = 12


def load(path: Path, set_options: Sequence[str] = ()) -> ClusterSpec:
    """Return the spec in a file, with `set_options` (`path=value`) applied, and its paths made absolute. Raises SpecError as `load_with_original` does."""
    return load_with_original(path, set_options)[0]


def load_with_original(path: Path, set_options: Sequence[str] = ()) -> tuple[ClusterSpec, ClusterSpec]:
    """Return the spec in a file, with `set_options` (`path=value`) applied: with its paths made absolute, and with the paths as they are written.

    Relative paths in the file start at the file's directory, those of `--set` at the current directory.
    Raises SpecError with every problem, in the order of their locations in the file.
    """
    document = _read(path)
    problems: list[Problem] = []
    for number, text in enumerate(set_options, 1):
        try:
            set_option.apply(document, text, number)
        except SpecError as error:
            problems += error.problems

    def directory(spec_path: SpecPath) -> Path:
        return Path.cwd() if document.location(spec_path).file == set_option.SOURCE else path.absolute().parent

    spec, findings = _examine(document, directory)
    problems += map(document.problem, findings)
    if problems or spec is None:
        unique = dict.fromkeys(problems)
        raise SpecError(sorted(unique, key=lambda problem: (problem.file == set_option.SOURCE, problem.line, problem.column, problem.path)))
    return _with_absolute_paths(spec, directory), spec


def problems_of(text: str, file: str, directory: Path) -> list[tuple[Finding, Problem]]:
    """Return the problems of a spec's text with their locations. `file` is its name in messages, `directory` the base of relative paths.

    Raises SpecError for a text that cannot be read at all.
    """
    document = Reader(file).read(syntax.parse(text.encode(), file))
    _, findings = _examine(document, lambda _path: directory)
    return [(finding, document.problem(finding)) for finding in findings]


def run_name(path: Path) -> str:
    """Return the name of the run that a spec file describes, even if the rest of the spec is not valid: its code may be half written.

    Raises SpecError when the file cannot be read, or has no valid name.
    """
    name = _read(path).value.get("name")
    try:
        return names.check_run_name(name) if isinstance(name, str) else load(path).name
    except FieldError:
        return load(path).name


def dump(spec: ClusterSpec) -> dict[str, Any]:
    """Return the spec as JSON values, with every default filled in, including the workload's."""
    storage = role_programs.storage_of(spec)
    dumped = spec.model_copy(update={"storage": storage}).model_dump(mode="json", by_alias=True)
    if spec.train is not None:
        train = catalog.with_defaults(spec.train, spec.strategy).model_dump(mode="json")
        if entry := catalog.CATALOG.get(spec.train.workload):
            train["params"] = entry.params.model_validate(spec.train.params).model_dump(mode="json")
        dumped["train"] = train
    if storage is None:
        del dumped["storage"]
    if spec.tensorboard is None:
        dumped["tensorboard"] = False
    if spec.notify is None:
        del dumped["notify"]
    return dumped


def dump_with_new_defaults(dumped: dict[str, Any]) -> dict[str, Any]:
    """Return a dump, which an older launcher may have written, with the defaults of newer fields; unchanged if it is not a valid spec any more."""
    try:
        return dump(ClusterSpec.model_validate(dumped))
    except ValidationError:
        return dict(dumped)


def digest(spec: ClusterSpec) -> str:
    """Return the identity of a spec: 12 hexadecimal digits of the SHA-256 of its dump without `notify`."""
    identifying = {key: value for key, value in dump(spec).items() if key != "notify"}
    text = json.dumps(identifying, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return the differences between two dumped specs: path, old and new value; None for a missing value."""
    differences: list[tuple[str, Any, Any]] = []
    for key in [*old, *(key for key in new if key not in old)]:
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            differences += [(f"{key}.{path}", was, is_now) for path, was, is_now in changes(before, after)]
        elif before != after:
            differences.append((key, before, after))
    return differences


def _read(path: Path) -> Document:
    file = str(path)
    try:
        with path.open("rb") as stream:
            data = stream.read(syntax.MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        remedy = ""
        if isinstance(error, IsADirectoryError):
            specs = _specs_in(path)
            remedy = f"name a file in it, such as {path / specs[0]}" if specs else "name the file"
        if isinstance(error, FileNotFoundError):
            remedy = (
                f"name {similar}"
                if (similar := _similar_file(path))
                else f"write one with `launcher init`, or check the path {shown(file)}"
            )
        raise SpecError([syntax.unreadable(file, error, "the file of a spec", remedy)]) from None
    return Reader(file).read(syntax.parse(data, file))


def _specs_in(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir() if entry.suffix in {".yaml", ".yml"})


def _similar_file(path: Path) -> Path | None:
    """Return the file in the same directory that a missing one was probably meant to be."""
    try:
        meant = nearest(path.name, _specs_in(path.parent))
    except OSError:
        return None
    return path.parent / meant if meant else None


def _examine(document: Document, directory: Callable[[SpecPath], Path]) -> tuple[ClusterSpec | None, list[Finding]]:
    """Return the valid part of a spec, and the findings of its fields and of the rules between them."""
    findings = list(document.findings)
    invalid = set(document.unusable)
    value = document.value
    spec: ClusterSpec | None = None
    for _ in range(4):  # each pass leaves out wrong values and fills in placeholders, below which the next may find more
        try:
            spec = ClusterSpec.model_validate(value)
            break
        except ValidationError as error:
            errors = error.errors(include_url=False)
        invalid |= {meant for details in errors if (meant := messages.meant_key(details, ClusterSpec))}
        if value is document.value:
            new_errors = [details for details in errors if messages.document_path(details) not in invalid]
            findings += messages.findings(new_errors, ClusterSpec, document.sources)
        paths = [messages.document_path(details) for details in errors]
        invalid |= set(paths)
        value = without(value, map(_up_to_list, paths))
        for details, path in zip(errors, paths, strict=True):
            if details["type"] == "missing" and path[-1] in _PLACEHOLDERS and _up_to_list(path) == path:
                _set_placeholder(value, path)
    if spec is not None:
        findings += rules.check(RuleContext(spec, document, frozenset(invalid), directory))
    return spec, findings


def _up_to_list(path: SpecPath) -> SpecPath:
    """Return the path of the outermost list in a path, or the path: removing one item of a list would move the others."""
    return next((path[:length] for length, part in enumerate(path) if isinstance(part, int)), path)


def _set_placeholder(value: Any, path: SpecPath) -> None:
    for part in path[:-1]:
        value = value[part]
    value[path[-1]] = _PLACEHOLDERS[str(path[-1])]


def _with_absolute_paths(spec: ClusterSpec, directory: Callable[[SpecPath], Path]) -> ClusterSpec:
    update: dict[str, Any] = {}
    if spec.code is not None:
        update["code"] = str(resolved(directory(("code",)), spec.code))
    if spec.volumes:
        update["volumes"] = [_with_absolute_path(volume, directory(("volumes", index))) for index, volume in enumerate(spec.volumes)]
    if spec.env_file is not None:
        update["env_file"] = str(resolved(directory(("env_file",)), spec.env_file))
    if spec.notify is not None and spec.notify.command is not None and "/" in spec.notify.command[0]:
        program = str(resolved(directory(("notify", "command")), spec.notify.command[0]))
        update["notify"] = spec.notify.model_copy(update={"command": [program, *spec.notify.command[1:]]})
    if spec.train is not None and rules.is_directory_name(spec.train):
        data = str(resolved(directory(("train", "data")), spec.train.data))
        train: Train = spec.train.model_copy(update={"data": data})
        update["train"] = train
    return spec.model_copy(update=update) if update else spec


def _with_absolute_path(volume: Volume, directory: Path) -> Volume:
    return volume.model_copy(update={"path": str(resolved(directory, volume.path))}) if volume.path is not None else volume
