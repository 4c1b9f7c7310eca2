"""Environment variables of the task's container, in their order, and what `$(NAME)` makes of them.

As Kubernetes has it in command, args and the values of env: `$(NAME)` of a defined variable becomes its value, that of another one stays as it
is, and `$$` becomes one dollar.
https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher.render.kubernetes.objects import literal
from launcher.spec import names
from launcher.spec.kubernetes import EnvSource
from launcher.spec.problems import FieldError, Path, all_of
from launcher.tfjob.draft import RoleDraft, Shared
from launcher.tfjob.reading import as_valid

_TF_CONFIG = "TF_CONFIG"
_RUN_DIR = "RUN_DIR"
# Variables that tasks get unless the job has them: launcher.plan.planner.
_OURS = frozenset(
    {"GRPC_FAIL_FAST", "PYTHONUNBUFFERED", "PYTHONPATH", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"}
)
# How Kubernetes names a Secret's or ConfigMap's value, or all of them -> the key of an EnvSource.
_ONE = {"secretKeyRef": "secret", "configMapKeyRef": "config_map"}
_ALL = {"secretRef": "secret", "configMapRef": "config_map"}

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")


def expand(text: str, values: Mapping[str, str]) -> str:
    """Return the text that a program gets."""
    return _REFERENCE.sub(lambda match: "$" if match[0] == "$$" else values.get(match[1], match[0]), text)


def completed(text: str, values: Mapping[str, str], *, is_known_later: Callable[[str], bool]) -> str:
    """Return a text for Kubernetes to replace the names for which `is_known_later` says so; the others are replaced now, or stay as they are then."""

    def replaced(match: re.Match[str]) -> str:
        name = match[1]
        if name in values:
            return values[name].replace("$", "$$")
        # Of a name with a reference in it every dollar.
        return match[0] if match[0] == "$$" or is_known_later(name) else match[0].replace("$", "$$")

    return _REFERENCE.sub(replaced, text)


def references(text: str) -> set[str]:
    """Return the names that a text refers to, defined or not."""
    return {match[1] for match in _REFERENCE.finditer(text) if match[1]}


@dataclass
class KnownVariables:
    """The variables of a container, as far as they are known before it starts."""

    values: dict[str, str] = field(default_factory=dict)
    late: set[str] = field(default_factory=set)  # whose values the cluster alone knows
    has_more: bool = False  # whether there are others whose names it alone knows

    def is_late(self, word: str) -> bool:
        """Return whether a word of a command refers to what only the cluster knows."""
        return any(map(self._is_for_later, references(word)))

    def _is_for_later(self, name: str) -> bool:
        # Another name may be of `envFrom`; those of the launcher's own are none there.
        return name in self.late or (self.has_more and name not in self.values and name not in _OURS and _is_plain(name))

    def for_later(self, word: str) -> str:
        """Return a word for the cluster to complete."""
        return completed(word, self.values, is_known_later=self._is_for_later)

    def remark(self, role: RoleDraft, path: Path, word: str) -> None:
        """Note that variables that a word refers to are replaced by their values, where they are."""
        if found := references(word) & set(self.values):
            words = all_of(f"$({name})" for name in sorted(found))
            remedy = "change both, if you change the variable; or have a shell read it: sh -c"
            role.reading.remark(path, f"{words} is replaced by the value that the variable has in the TFJob", remedy)

    def expanded(self, word: str) -> str:
        """Return a word as the program gets it."""
        return expand(word, self.values)


def read(role: RoleDraft, path: Path) -> KnownVariables:
    """Carry over `env` and `envFrom`; return what words may refer to."""
    reading = role.reading
    known = KnownVariables()
    plain: dict[str, str | dict[str, str]] = {}
    late: dict[str, dict[str, Any]] = {}
    for index in range(len(reading.items((*path, "env")))):
        below = (*path, "env", index)
        name = reading.name(below)
        if name is None:
            continue
        if not _is_usable(role, (*below, "name"), name):
            continue
        if name in known.late:
            message = f"{name} stands a second time, and the first has its value from the cluster"
            reading.refuse((*below, "name"), message, "each variable once", "remove one of the two")
        if name in plain:
            reading.remark(below, f"{name} stands a second time: this one holds, as in Kubernetes")
        plain.pop(name, None)
        late.pop(name, None)
        value = reading.text((*below, "value")) or ""
        if (secret := _from_secret(name, reading.value((*below, "valueFrom")))) is not None:
            plain[name] = secret
            known.values.pop(name, None)
            known.late.add(name)
            continue
        if reading.value((*below, "valueFrom")) is not None or known.is_late(value):
            late[name] = _for_later(role, below, name, known)
            known.values.pop(name, None)
            known.late.add(name)
            continue
        known.late.discard(name)
        known.remark(role, (*below, "value"), value)
        known.values[name] = known.expanded(value)
        if _is_plain(name):
            plain[name] = known.values[name]
        else:
            late[name] = {"name": name, "value": literal(known.values[name])}
    if plain:
        role.put("env", plain, (*path, "env"))
    env_from = [reading.mapping((*path, "envFrom", index)) for index in range(len(reading.items((*path, "envFrom"))))]
    # Words may refer to these, values of other variables not: TFJob put TF_CONFIG last.
    known.late.add(_TF_CONFIG)
    known.has_more = bool(env_from)
    _share(role, path, list(late.values()), env_from)
    return known


def _from_secret(name: str, source: Any) -> dict[str, str] | None:
    """Return a variable's source as `env` of a role has it, or None where that cannot say it."""
    given = source.get("secretKeyRef") if isinstance(source, dict) and len(source) == 1 else None
    if name in _OURS or not _is_plain(name) or not isinstance(given, dict) or given.get("optional"):
        return None
    secret, key = given.get("name"), given.get("key")
    if not isinstance(secret, str) or not isinstance(key, str):
        return None
    try:
        names.check_secret(name)
        names.check_secret_key(key)
    except FieldError:
        return None
    return {"secret": secret, "key": key}


def _for_later(role: RoleDraft, path: Path, name: str, known: KnownVariables) -> dict[str, Any]:
    """Return a variable whose value the cluster finds, as an override has it."""
    given = role.reading.mapping(path)
    if given.get("valueFrom") is not None:
        # A value of ours would stand beside it.
        return {**given, "value": None} if name in _OURS else given
    if name in _OURS:
        message = f"{name} has a value of the launcher's own unless the job says one, and this one only the cluster knows"
        role.reading.refuse((*path, "value"), message, "a value without $(...)", "have a shell set it before the program")
    known.remark(role, (*path, "value"), str(given.get("value")))
    return {**given, "value": known.for_later(str(given.get("value")))}


def _is_usable(role: RoleDraft, path: Path, name: str) -> bool:
    """Return whether a run may have a variable of that name."""
    if name == _TF_CONFIG:
        role.reading.remark(path[:-1], "the launcher sets TF_CONFIG, as TFJob did: left out")
        return False
    if names.is_reserved_variable(name) and name != _RUN_DIR:  # a run has none as long as its spec has no `storage`
        role.reading.refuse(path, f"`{name}` is set by the launcher for each task", "another name", "leave it out, or choose another name")
        return False
    return True


def _is_plain(name: str) -> bool:
    """Return whether `env` of a role takes such a name; Kubernetes has dots and dashes, too."""
    try:
        names.check_env_name(name)
    except FieldError:
        return False
    return True


def _share(role: RoleDraft, path: Path, late: list[dict[str, Any]], env_from: list[dict[str, Any]]) -> None:
    """Leave references to the cluster: as `kubernetes.env_from` where that can say it, else as an override."""
    forms = [*map(_env_from_form, env_from), *map(_form, late)]
    if forms and None not in forms:
        # Both stand in lists that an override has, too: the variables alone are merged one by one.
        override = {key: value for key, value in (("envFrom", env_from), ("env", late)) if value}
        role.shared["env_from"] = Shared(forms, "", override, (*path, "env" if late else "envFrom"), of_container=True)
        return
    if env_from:
        role.container["envFrom"] = env_from
    if late:
        role.container["env"] = late


def _form(variable: dict[str, Any]) -> dict[str, Any] | None:
    """Return a variable as EnvSource has it, or None where it comes from elsewhere."""
    source = variable.get("valueFrom")
    if not isinstance(source, dict) or len(source) != 1:
        return None
    [(kind, given)] = source.items()
    return _valid(_ONE, kind, given, {"name": variable.get("name"), "key": given.get("key") if isinstance(given, dict) else None})


def _env_from_form(source: dict[str, Any]) -> dict[str, Any] | None:
    prefix = {"prefix": source["prefix"]} if source.get("prefix") else {}
    kinds = [key for key in source if key != "prefix"]
    return _valid(_ALL, kinds[0], source[kinds[0]], prefix) if len(kinds) == 1 else None


def _valid(kinds: dict[str, str], kind: str, given: Any, more: dict[str, Any]) -> dict[str, Any] | None:
    if kind not in kinds or not isinstance(given, dict):
        return None
    form = {kinds[kind]: given.get("name"), **more} | ({"optional": True} if given.get("optional") else {})
    return as_valid(EnvSource, form)
