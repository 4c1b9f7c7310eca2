"""Reads the environment variables of the task's container in order, and replaces references to them: `$(NAME)`.

Kubernetes does so in command, args and the values of env: `$(NAME)` of a defined variable becomes its value, that of another variable stays
unchanged, and `$$` becomes one dollar.
https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher.render.kubernetes.objects import literal
from launcher.spec import names
from launcher.spec.kubernetes import EnvSource
from launcher.spec.problems import FieldError, Path, all_of
from launcher.tfjob.builder import RoleBuilder, SharedSetting
from launcher.tfjob.field_reader import as_valid

_TF_CONFIG = "TF_CONFIG"
_RUN_DIR = "RUN_DIR"
# Variables that launcher.plan.planner sets unless the job has them.
_DEFAULT_VARIABLES = frozenset(
    {"GRPC_FAIL_FAST", "PYTHONUNBUFFERED", "PYTHONPATH", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"}
)
# Kubernetes' key for one value of a Secret or ConfigMap, or for all values -> the key of an EnvSource.
_VALUE_KINDS = {"secretKeyRef": "secret", "configMapKeyRef": "config_map"}
_ALL_VALUES_KINDS = {"secretRef": "secret", "configMapRef": "config_map"}

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")


def expand(text: str, values: Mapping[str, str]) -> str:
    """Return the text that a program gets."""
    return _REFERENCE.sub(lambda match: "$" if match[0] == "$$" else values.get(match[1], match[0]), text)


def references(text: str) -> set[str]:
    """Return the names that a text refers to, defined or not."""
    return {match[1] for match in _REFERENCE.finditer(text) if match[1]}


@dataclass
class Variables:
    """The variables of a container: those with known values, and those whose values only the cluster knows."""

    values: dict[str, str] = field(default_factory=dict)
    deferred: set[str] = field(default_factory=set)  # names whose values only the cluster knows
    has_unknown_names: bool = False  # whether there are variables whose names only the cluster knows

    def refers_to_deferred(self, word: str) -> bool:
        """Return whether a word of a command refers to a variable that only the cluster knows."""
        return any(map(self._is_deferred, references(word)))

    def _is_deferred(self, name: str) -> bool:
        # An unknown name may come from `envFrom`, unless the launcher sets it.
        return name in self.deferred or (
            self.has_unknown_names and name not in self.values and name not in _DEFAULT_VARIABLES and _is_env_name(name)
        )

    def expanded_except_deferred(self, word: str) -> str:
        """Return a word in which Kubernetes will only replace the cluster's variables: known names are replaced now, unknown ones are escaped."""

        def replaced(match: re.Match[str]) -> str:
            name = match[1]
            if name in self.values:
                return self.values[name].replace("$", "$$")
            # Every dollar is escaped, as a name may contain a reference, too.
            return match[0] if match[0] == "$$" or self._is_deferred(name) else match[0].replace("$", "$$")

        return _REFERENCE.sub(replaced, word)

    def remark_replacements(self, role: RoleBuilder, path: Path, word: str) -> None:
        """Add a remark if variables in a word are replaced by their values."""
        if replaced := references(word) & set(self.values):
            references_text = all_of(f"$({name})" for name in sorted(replaced))
            remedy = "change both, if you change the variable; or let a shell read it: sh -c"
            role.reader.add_remark(path, f"{references_text} is replaced by the value that the variable has in the TFJob", remedy)

    def expanded(self, word: str) -> str:
        """Return a word with all references replaced, as the program gets it."""
        return expand(word, self.values)


def read(role: RoleBuilder, path: Path) -> Variables:
    """Carry over `env` and `envFrom`; return the variables to which words may refer."""
    reader = role.reader
    known = Variables()
    plain: dict[str, str | dict[str, str]] = {}
    deferred: dict[str, dict[str, Any]] = {}
    for index in range(len(reader.items((*path, "env")))):
        below = (*path, "env", index)
        name = reader.name(below)
        if name is None:
            continue
        if not _is_usable(role, (*below, "name"), name):
            continue
        if name in known.deferred:
            message = f"{name} is a duplicate, and the first has its value from the cluster"
            reader.add_problem((*below, "name"), message, "each variable once", "remove one of the two")
        if name in plain:
            reader.add_remark(below, f"{name} is a duplicate: the last one applies, as in Kubernetes")
        plain.pop(name, None)
        deferred.pop(name, None)
        value = reader.string((*below, "value")) or ""
        source = reader.value((*below, "valueFrom"))
        secret = secret_source(name, source) if _is_env_name(name) and name not in _DEFAULT_VARIABLES else None
        if secret is not None:
            plain[name] = secret
            known.values.pop(name, None)
            known.deferred.add(name)
            continue
        if source is not None or known.refers_to_deferred(value):
            deferred[name] = _deferred_variable(role, below, name, known)
            known.values.pop(name, None)
            known.deferred.add(name)
            continue
        known.deferred.discard(name)
        known.remark_replacements(role, (*below, "value"), value)
        known.values[name] = known.expanded(value)
        if _is_env_name(name):
            plain[name] = known.values[name]
        else:
            deferred[name] = {"name": name, "value": literal(known.values[name])}
    if plain:
        role.set("env", plain, (*path, "env"))
    env_from = [reader.mapping((*path, "envFrom", index)) for index in range(len(reader.items((*path, "envFrom"))))]
    # Words may refer to these, but values of other variables may not: TFJob put TF_CONFIG last.
    known.deferred.add(_TF_CONFIG)
    known.has_unknown_names = bool(env_from)
    _write_deferred(role, path, list(deferred.values()), env_from)
    return known


def secret_source(name: str, source: Any) -> dict[str, str] | None:
    """Return the `valueFrom` of a variable as its source in `env`, or None if `env` cannot have it."""
    reference = source.get("secretKeyRef") if isinstance(source, dict) and len(source) == 1 else None
    if not names.can_be_secret(name) or not isinstance(reference, dict) or reference.get("optional"):
        return None
    secret, key = reference.get("name"), reference.get("key")
    return {"secret": secret, "key": key} if isinstance(secret, str) and isinstance(key, str) else None


def _deferred_variable(role: RoleBuilder, path: Path, name: str, known: Variables) -> dict[str, Any]:
    """Return a variable whose value only the cluster knows, for an override."""
    variable = role.reader.mapping(path)
    if variable.get("valueFrom") is not None:
        # Null removes the launcher's own value, with which the override is merged.
        return {**variable, "value": None} if name in _DEFAULT_VARIABLES else variable
    if name in _DEFAULT_VARIABLES:
        message = f"the launcher sets {name} unless the job does, and only the cluster knows the value here"
        role.reader.add_problem((*path, "value"), message, "a value without $(...)", "let a shell set it before it starts the program")
    known.remark_replacements(role, (*path, "value"), str(variable.get("value")))
    return {**variable, "value": known.expanded_except_deferred(str(variable.get("value")))}


def _is_usable(role: RoleBuilder, path: Path, name: str) -> bool:
    """Return whether a run may have a variable with this name; adds a remark or problem if not."""
    if name == _TF_CONFIG:
        role.reader.add_remark(path[:-1], "the launcher sets TF_CONFIG, as TFJob did: left out")
        return False
    if names.is_reserved_variable(name) and name != _RUN_DIR:  # the launcher does not set it without `storage`
        role.reader.add_problem(
            path, f"`{name}` is set by the launcher for each task", "another name", "leave it out, or choose another name"
        )
        return False
    return True


def _is_env_name(name: str) -> bool:
    """Return whether `env` of a role accepts a name; Kubernetes also allows dots and dashes."""
    try:
        names.check_task_variable(name)
    except FieldError:
        return False
    return True


def _write_deferred(role: RoleBuilder, path: Path, deferred: list[dict[str, Any]], env_from: list[dict[str, Any]]) -> None:
    """Write variables from the cluster into `kubernetes.env_from` if it can have all of them, else into an override."""
    items = [*map(_as_all_values_source, env_from), *map(_as_value_source, deferred)]
    if items and None not in items:
        # If roles differ, the override has both lists.
        override = {key: value for key, value in (("envFrom", env_from), ("env", deferred)) if value}
        role.shared["env_from"] = SharedSetting(items, "", override, (*path, "env" if deferred else "envFrom"), of_container=True)
        return
    if env_from:
        role.container["envFrom"] = env_from
    if deferred:
        role.container["env"] = deferred


def _as_value_source(variable: dict[str, Any]) -> dict[str, Any] | None:
    """Return a variable as an EnvSource, or None if it is from another source."""
    source = variable.get("valueFrom")
    if not isinstance(source, dict) or len(source) != 1:
        return None
    [(kind, reference)] = source.items()
    return _valid(
        _VALUE_KINDS, kind, reference, {"name": variable.get("name"), "key": reference.get("key") if isinstance(reference, dict) else None}
    )


def _as_all_values_source(source: dict[str, Any]) -> dict[str, Any] | None:
    prefix = {"prefix": source["prefix"]} if source.get("prefix") else {}
    kinds = [key for key in source if key != "prefix"]
    return _valid(_ALL_VALUES_KINDS, kinds[0], source[kinds[0]], prefix) if len(kinds) == 1 else None


def _valid(kinds: dict[str, str], kind: str, reference: Any, other_fields: dict[str, Any]) -> dict[str, Any] | None:
    if kind not in kinds or not isinstance(reference, dict):
        return None
    item = {kinds[kind]: reference.get("name"), **other_fields} | ({"optional": True} if reference.get("optional") else {})
    return as_valid(EnvSource, item)
