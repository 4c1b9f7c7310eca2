"""Environment variables of the task's container, in their order, and what `$(NAME)` makes of them."""

from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from launcher.spec import names
from launcher.spec.kubernetes import EnvSource
from launcher.spec.problems import FieldError, Path
from launcher.tfjob.draft import RoleDraft, Shared
from launcher.tfjob.expansion import expand, references

_TF_CONFIG = "TF_CONFIG"
# How Kubernetes names a Secret's or ConfigMap's value, or all of them -> the key of an EnvSource.
_ONE = {"secretKeyRef": "secret", "configMapKeyRef": "config_map"}
_ALL = {"secretRef": "secret", "configMapRef": "config_map"}


@dataclass
class Known:
    """What is known of a container's variables before it starts."""

    values: dict[str, str] = field(default_factory=dict)
    late: set[str] = field(default_factory=lambda: {_TF_CONFIG})  # whose values the cluster alone knows
    has_more: bool = False  # whether there are others whose names it alone knows

    def is_late(self, word: str) -> bool:
        """Return whether a word of a command refers to what only the cluster knows."""
        found = references(word) - set(self.values)
        return bool(found & self.late) or (self.has_more and any(name.replace("_", "a").isalnum() for name in found))

    def names(self, word: str) -> set[str]:
        """Return the variables with known values that a word refers to."""
        return references(word) & set(self.values)

    def expanded(self, word: str) -> str:
        """Return a word as the program gets it."""
        return expand(word, self.values)


def read(role: RoleDraft, path: Path) -> Known:
    """Carry over `env` and `envFrom`; return what words may refer to."""
    reading = role.reading
    known = Known()
    plain: dict[str, str] = {}
    late: dict[str, dict[str, Any]] = {}
    for index in range(len(reading.items((*path, "env")))):
        below = (*path, "env", index)
        name = reading.text((*below, "name"))
        if name is None:
            if not reading.has((*below, "name")):
                reading.refuse(below, "a variable has no name", "name and value", "add `name`")
            continue
        if not _is_usable(role, (*below, "name"), name):
            continue
        if name in plain or name in late:
            reading.remark(below, f"{name} stands a second time: this one holds, as in Kubernetes")
        plain.pop(name, None)
        late.pop(name, None)
        value = reading.text((*below, "value")) or ""
        if reading.value((*below, "valueFrom")) is not None or references(value) & known.late:
            late[name] = reading.mapping(below)
            known.values.pop(name, None)
            known.late.add(name)
            continue
        known.late.discard(name)
        known.values[name] = known.expanded(value)
        if _is_plain(name):
            plain[name] = known.values[name]
        else:
            late[name] = reading.mapping(below)
    if plain:
        role.put("env", plain, (*path, "env"))
    whole = [reading.mapping((*path, "envFrom", index)) for index in range(len(reading.items((*path, "envFrom"))))]
    known.has_more = bool(whole)
    _share(role, path, list(late.values()), whole)
    return known


def _is_usable(role: RoleDraft, path: Path, name: str) -> bool:
    """Return whether a run may have a variable of that name."""
    if name == _TF_CONFIG:
        role.reading.remark(path, "the launcher sets it, as TFJob did: left out")
        return False
    try:
        names.check_env_name(name)
    except FieldError as error:
        if "set by the launcher" in error.message:
            role.reading.refuse_as(path, error)
            return False
    return True


def _is_plain(name: str) -> bool:
    """Return whether `env` of a role takes such a name; Kubernetes has dots and dashes, too."""
    try:
        names.check_env_name(name)
    except FieldError:
        return False
    return True


def _share(role: RoleDraft, path: Path, late: list[dict[str, Any]], whole: list[dict[str, Any]]) -> None:
    """Keep what comes from the cluster: as `kubernetes.env_from` where that can say it, else as an override."""
    forms = [*map(_whole_form, whole), *map(_form, late)]
    if forms and None not in forms:
        # Both stand in lists that an override has, too: the variables alone are merged one by one.
        override = {key: value for key, value in (("envFrom", whole), ("env", late)) if value}
        role.shared["env_from"] = Shared(forms, "", override, (*path, "env" if late else "envFrom"), of_container=True)
        return
    if whole:
        role.container["envFrom"] = whole
    if late:
        role.container["env"] = late


def _form(variable: dict[str, Any]) -> dict[str, Any] | None:
    """Return a variable as EnvSource has it, or None where it comes from elsewhere."""
    source = variable.get("valueFrom")
    if not isinstance(source, dict) or len(source) != 1:
        return None
    [(kind, given)] = source.items()
    return _valid(_ONE, kind, given, {"name": variable.get("name"), "key": given.get("key") if isinstance(given, dict) else None})


def _whole_form(source: dict[str, Any]) -> dict[str, Any] | None:
    prefix = {"prefix": source["prefix"]} if source.get("prefix") else {}
    kinds = [key for key in source if key != "prefix"]
    return _valid(_ALL, kinds[0], source[kinds[0]], prefix) if len(kinds) == 1 else None


def _valid(kinds: dict[str, str], kind: str, given: Any, more: dict[str, Any]) -> dict[str, Any] | None:
    if kind not in kinds or not isinstance(given, dict):
        return None
    form = {kinds[kind]: given.get("name"), **more} | ({"optional": True} if given.get("optional") else {})
    try:
        EnvSource.model_validate(form)
    except ValidationError:
        return None
    return form
