"""Init containers and sidecars: fields of the role as far as those can say them, the rest an override of the container of that name."""

from typing import Any

from launcher.render.kubernetes.objects import TRAINER
from launcher.spec import names
from launcher.spec.problems import FieldError, Path
from launcher.tfjob import pod_volumes, resources, variables
from launcher.tfjob.container import security
from launcher.tfjob.draft import ExtraContainer, RoleDraft

MAIN = "tensorflow"  # the name of the container that TFJob looks after
# The fields of a container that are read here; all others are an override as they are.
_READ = frozenset(
    {"name", "image", "command", "args", "env", "workingDir", "resources", "volumeMounts", "securityContext", "restartPolicy"}
)


def read_init_containers(role: RoleDraft, path: Path) -> None:
    """Carry over the pod's init containers; one that is restarted is a sidecar already."""
    for index, given in enumerate(role.reading.items(path)):
        stays = isinstance(given, dict) and given.get("restartPolicy") == "Always"
        _read(role, (*path, index), "sidecars" if stays else "init_containers")
        if stays and index + 1 < len(role.reading.items(path)):
            role.reading.remark((*path, index), "is one of `sidecars`, which start after all init containers")


def read_sidecar(role: RoleDraft, path: Path) -> None:
    """Carry over a container beside the task's."""
    _read(role, path, "sidecars")
    message = "is one of `sidecars`: it ends with the task, and starts again when it ends before; Kubernetes does so from 1.29 on"
    remedy = "have it do what is to be done after the task when it is asked to end (SIGTERM), within `limits.grace_period`"
    role.reading.remark(path, message, remedy)


def _read(role: RoleDraft, path: Path, kind: str) -> None:
    reading = role.reading
    name = reading.name(path)
    if name == TRAINER or (name == MAIN and path[-2] == "initContainers"):
        reading.refuse((*path, "name"), f"the name {name} is taken by the task's container", "another name", "rename it")
        return
    if name is None:
        return
    given = pod_volumes.renamed(role, reading.mapping(path))
    image = reading.text((*path, "image"))
    if image is None:
        reading.refuse(path, f"the container {name} has no image", "an image", "add `image`")
        return
    try:
        names.check_image(image)
        names.check_container_name(name)
    except FieldError as error:
        reading.refuse_as(path, error)
        return
    one = ExtraContainer(kind, path, {"name": name, "image": image}, {key: value for key, value in given.items() if key not in _READ})
    for key in ("command", "args", "env", "volumeMounts"):
        reading.items((*path, key))  # says what is none
    _words(role, one, given, _variables(role, one, given))
    if "securityContext" in given:
        one.override["securityContext"] = security(role, (*path, "securityContext"))
    _working_dir(one, given)
    _resources(one, given)
    if given.get("restartPolicy") not in (None, "Always"):  # of any type
        one.override["restartPolicy"] = given["restartPolicy"]
    one.mounts += given["volumeMounts"] if isinstance(given.get("volumeMounts"), list) else []
    role.extra_containers.append(one)


def _variables(role: RoleDraft, one: ExtraContainer, given: dict[str, Any]) -> dict[str, str] | None:
    """Carry over the variables, and return those whose values are known; None where some come from elsewhere, and all are an override."""
    values: dict[str, str] = {}
    fields: dict[str, Any] = {}
    listed = given["env"] if isinstance(given.get("env"), list) else []
    for index, entry in enumerate(listed):
        variable = _variable(entry, values)
        if variable is None or variable[0] in fields:
            one.override["env"] = listed
            return None
        name, value = variable
        variables.KnownVariables(values).remark(role, (*one.path, "env", index, "value"), str(entry.get("value")))
        fields[name] = value
        if isinstance(value, str):
            values[name] = value
    one.fields |= {"env": fields} if fields else {}
    has_more = bool(given.get("envFrom")) or len(values) < len(fields)
    return None if has_more else values


def _variable(entry: Any, values: dict[str, str]) -> tuple[str, Any] | None:
    """Return a variable as `env` has it, None where that cannot say it. It may refer to `values`, which stand before it."""
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        return None
    name, source = entry["name"], entry.get("valueFrom")
    try:
        names.check_name_of_variable(name)
        if source is None:
            value = entry.get("value") or ""
            return (
                (name, variables.expand(value, values)) if isinstance(value, str) and variables.references(value) <= set(values) else None
            )
        secret = source.get("secretKeyRef") if isinstance(source, dict) and len(source) == 1 else None
        if not isinstance(secret, dict) or set(secret) != {"name", "key"}:
            return None
        names.check_secret(name)
        names.check_object_name(str(secret["name"]))
        names.check_secret_key(str(secret["key"]))
    except FieldError:
        return None
    return name, {"secret": str(secret["name"]), "key": str(secret["key"])}


def _words(role: RoleDraft, one: ExtraContainer, given: dict[str, Any], values: dict[str, str] | None) -> None:
    """Carry over command and args; where only the cluster can complete one of their words both are an override."""
    lists = {key: given[key] for key in ("command", "args") if given.get(key)}
    words = [word for listed in lists.values() for word in (listed if isinstance(listed, list) else [None])]
    if all(isinstance(word, str) and (values is not None or not variables.references(word)) for word in words):
        known = variables.KnownVariables(values or {})
        for key, listed in lists.items():
            for index, word in enumerate(listed):
                known.remark(role, (*one.path, key, index), word)
            one.fields[key] = [variables.expand(word, known.values) for word in listed]
    else:
        one.override |= lists


def _working_dir(one: ExtraContainer, given: dict[str, Any]) -> None:
    where = given.get("workingDir")
    if isinstance(where, str) and where.startswith("/") and ":" not in where:
        one.fields["working_dir"] = where
    elif where is not None:
        one.override["workingDir"] = where


def _resources(one: ExtraContainer, given: dict[str, Any]) -> None:
    amounts = given.get("resources")
    if not amounts:
        return
    fields = resources.as_fields(amounts) if isinstance(amounts, dict) else None
    if fields is None:
        one.override["resources"] = amounts
    else:
        one.fields |= fields
