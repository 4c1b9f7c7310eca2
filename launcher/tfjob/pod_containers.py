"""Reads init containers and sidecars: into fields of the role if it has them, else into an override of that container."""

from typing import Any

from launcher.render.kubernetes.objects import TRAINER_CONTAINER
from launcher.spec import names
from launcher.spec.problems import FieldError, Path
from launcher.tfjob import pod_volumes, resources, variables
from launcher.tfjob.builder import ExtraContainer, RoleBuilder
from launcher.tfjob.container import security

TENSORFLOW = "tensorflow"  # the name of TFJob's main container
# The fields of a container that are read here; all others go into the override, with renamed volumes.
_FIELDS_READ = frozenset(
    {"name", "image", "command", "args", "env", "workingDir", "resources", "volumeMounts", "securityContext", "restartPolicy"}
)


def read_init_containers(role: RoleBuilder, path: Path) -> None:
    """Carry over the pod's init containers; one with restartPolicy Always is a sidecar."""
    for index, container in enumerate(role.reader.items(path)):
        is_sidecar = isinstance(container, dict) and container.get("restartPolicy") == "Always"
        _read(role, (*path, index), "sidecars" if is_sidecar else "init_containers")
        if is_sidecar and index + 1 < len(role.reader.items(path)):
            role.reader.add_remark((*path, index), "is one of `sidecars`, which start after all init containers")


def read_sidecar(role: RoleBuilder, path: Path) -> None:
    """Carry over a container beside the task's."""
    _read(role, path, "sidecars")
    message = "is one of `sidecars`: it ends with the task, and starts again if it ends before; this needs Kubernetes 1.29 or newer"
    remedy = "let it do its work after the task's end on SIGTERM, within `limits.grace_period`"
    role.reader.add_remark(path, message, remedy)


def _read(role: RoleBuilder, path: Path, kind: str) -> None:
    reader = role.reader
    name = reader.name(path)
    if name == TRAINER_CONTAINER or (name == TENSORFLOW and path[-2] == "initContainers"):
        reader.add_problem((*path, "name"), f"the name {name} is taken by the task's container", "another name", "rename it")
        return
    if name is None:
        return
    container = pod_volumes.with_renamed_volumes(role, reader.mapping(path))
    image = reader.string((*path, "image"))
    if image is None:
        reader.add_problem(path, f"the container {name} has no image", "an image", "add `image`")
        return
    try:
        names.check_image(image)
        names.check_container_name(name)
    except FieldError as error:
        reader.add_field_error(path, error)
        return
    extra = ExtraContainer(
        kind, path, {"name": name, "image": image}, {key: value for key, value in container.items() if key not in _FIELDS_READ}
    )
    for key in ("command", "args", "env", "volumeMounts"):
        reader.items((*path, key))  # refuses a value that is not a list
    _command(role, extra, container, _variables(role, extra, container))
    if "securityContext" in container:
        extra.override["securityContext"] = security(role, (*path, "securityContext"))
    _working_dir(extra, container)
    _resources(extra, container)
    if container.get("restartPolicy") not in (None, "Always"):  # of any type
        extra.override["restartPolicy"] = container["restartPolicy"]
    extra.mounts += container["volumeMounts"] if isinstance(container.get("volumeMounts"), list) else []
    role.extra_containers.append(extra)


def _variables(role: RoleBuilder, extra: ExtraContainer, container: dict[str, Any]) -> dict[str, str] | None:
    """Carry over the variables, and return those whose values are known; None if some are not known.

    If `env` cannot have one of them, all go into the override.
    """
    values: dict[str, str] = {}
    fields: dict[str, Any] = {}
    entries = container["env"] if isinstance(container.get("env"), list) else []
    for index, entry in enumerate(entries):
        variable = _variable(entry, values)
        if variable is None or variable[0] in fields:
            extra.override["env"] = entries
            return None
        name, value = variable
        variables.Variables(values).remark_replacements(role, (*extra.path, "env", index, "value"), str(entry.get("value")))
        fields[name] = value
        if isinstance(value, str):
            values[name] = value
    extra.fields |= {"env": fields} if fields else {}
    has_more = bool(container.get("envFrom")) or len(values) < len(fields)
    return None if has_more else values


def _variable(entry: Any, values: dict[str, str]) -> tuple[str, Any] | None:
    """Return a variable for `env`, or None if `env` cannot have it. It may refer to `values`, the variables before it."""
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        return None
    name, source = entry["name"], entry.get("valueFrom")
    try:
        names.check_variable_name(name)
    except FieldError:
        return None
    if source is not None:
        secret = variables.secret_source(name, source)
        return None if secret is None else (name, secret)
    value = entry.get("value") or ""
    return (name, variables.expand(value, values)) if isinstance(value, str) and variables.references(value) <= set(values) else None


def _command(role: RoleBuilder, extra: ExtraContainer, container: dict[str, Any], values: dict[str, str] | None) -> None:
    """Carry over command and args; both go into the override if a word has a variable that only the cluster knows."""
    lists = {key: container[key] for key in ("command", "args") if container.get(key)}
    words = [word for listed in lists.values() for word in (listed if isinstance(listed, list) else [None])]
    if all(isinstance(word, str) and (values is not None or not variables.references(word)) for word in words):
        known = variables.Variables(values or {})
        for key, listed in lists.items():
            for index, word in enumerate(listed):
                known.remark_replacements(role, (*extra.path, key, index), word)
            extra.fields[key] = [known.expanded(word) for word in listed]
    else:
        extra.override |= lists


def _working_dir(extra: ExtraContainer, container: dict[str, Any]) -> None:
    directory = container.get("workingDir")
    if isinstance(directory, str) and directory.startswith("/") and ":" not in directory:
        extra.fields["working_dir"] = directory
    elif directory is not None:
        extra.override["workingDir"] = directory


def _resources(extra: ExtraContainer, container: dict[str, Any]) -> None:
    amounts = container.get("resources")
    if not amounts:
        return
    fields = resources.as_fields(amounts) if isinstance(amounts, dict) else None
    if fields is None:
        extra.override["resources"] = amounts
    else:
        extra.fields |= fields
