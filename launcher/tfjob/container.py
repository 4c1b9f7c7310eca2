"""Reads the container called tensorflow: the task's program, image, ports, variables and resources."""

from typing import Any

from launcher.plan.addresses import PORT
from launcher.spec import names
from launcher.spec.problems import FieldError, Path, shown
from launcher.tfjob import pod_volumes, resources, variables
from launcher.tfjob.builder import RoleBuilder, SharedSetting
from launcher.tfjob.field_reader import LeftOut, Table, read_elsewhere, walk

_PORT_NAME = "tfjob-port"  # the port in TF_CONFIG
_OUR_PORT_NAME = "grpc"


def _carry_over(role: RoleBuilder, path: Path) -> None:
    role.container[str(path[-1])] = role.reader.value(path)


def _image(role: RoleBuilder, path: Path) -> None:
    image = role.reader.string(path)
    if image is None:
        return
    try:
        role.set("image", names.check_image(image), path)
    except FieldError as error:
        role.reader.add_field_error(path, error)


def _pull_policy(role: RoleBuilder, path: Path) -> None:
    if policy := role.reader.string(path):
        role.shared["image_pull_policy"] = SharedSetting(policy, "imagePullPolicy", policy, path, of_container=True)


def _working_dir(role: RoleBuilder, path: Path) -> None:
    directory = role.reader.string(path)
    if directory and directory.startswith("/"):
        role.set("working_dir", directory, path)
    elif directory:
        role.container["workingDir"] = directory


def _ports(role: RoleBuilder, path: Path) -> None:
    ports: list[dict[str, Any]] = []
    for index in range(len(role.reader.items(path))):
        below = (*path, index)
        port = role.reader.mapping(below)
        number = role.reader.integer((*below, "containerPort"), 1)
        if number is None:
            continue
        if port.get("name") == _PORT_NAME and number != PORT:
            message = f"tasks listen on port {PORT}, and TF_CONFIG says so; TFJob had {number} there"
            role.reader.add_remark(
                (*below, "containerPort"), message, "if the program does not take its port from TF_CONFIG, change it to do so"
            )
        if set(port) - {"name", "containerPort", "protocol"} or not (port.get("name") == _PORT_NAME or number == PORT):
            ports.append(dict(port))
    if any(port.get("name") == _OUR_PORT_NAME for port in ports):
        # Names of ports are unique in a pod: TensorFlow's port gets another one.
        ports.insert(0, {"containerPort": PORT, "name": _PORT_NAME})
    if ports:
        role.container["ports"] = ports


def security(role: RoleBuilder, path: Path) -> dict[str, Any]:
    """Return a container's security context. A privileged container may escalate privileges, which the launcher forbids by default."""
    context = dict(role.reader.mapping(path))
    capabilities = role.reader.items((*path, "capabilities", "add")) if isinstance(context.get("capabilities"), dict) else []
    if (
        context.get("privileged") is True
        or context.get("allowPrivilegeEscalation") is True
        or {"SYS_ADMIN", "CAP_SYS_ADMIN"} & set(map(str, capabilities))
    ):
        context.setdefault("allowPrivilegeEscalation", True)
        message = "carried over; this container may gain privileges, which the launcher forbids by default"
        role.reader.add_remark(path, message, "check that the namespace's Pod Security level admits it")
    return context


def _security(role: RoleBuilder, path: Path) -> None:
    role.container["securityContext"] = security(role, path)


CONTAINER: Table[RoleBuilder] = {
    "name": read_elsewhere,
    "image": _image,
    "imagePullPolicy": _pull_policy,
    "command": read_elsewhere,
    "args": read_elsewhere,
    "env": read_elsewhere,
    "envFrom": read_elsewhere,
    "workingDir": _working_dir,
    "ports": _ports,
    "resources": resources.read,
    "volumeMounts": pod_volumes.read_mounts,
    "securityContext": _security,
    "restartPolicy": LeftOut("is for init containers, and is left out"),
    **dict.fromkeys(
        [
            "lifecycle",
            "livenessProbe",
            "readinessProbe",
            "resizePolicy",
            "startupProbe",
            "stdin",
            "stdinOnce",
            "terminationMessagePath",
            "terminationMessagePolicy",
            "tty",
            "volumeDevices",
        ],
        _carry_over,
    ),
}


def read(role: RoleBuilder, path: Path) -> None:
    """Carry over the task's container."""
    walk(path, CONTAINER, role)
    if "volumeDevices" in role.container:
        role.container["volumeDevices"] = pod_volumes.with_renamed_volumes(role, role.container)["volumeDevices"]
    if not role.reader.has((*path, "image")):
        role.reader.add_problem(path, f"the {role.kind} has no image", "the image of its program", "add `image`")
    known = variables.read(role, path)
    _read_command(role, path, known)


def _read_command(role: RoleBuilder, path: Path, known: variables.Variables) -> None:
    """Carry over command and args. The first word with a variable that only the cluster knows, and all words after it, go to the override's args."""
    command, args = role.reader.strings((*path, "command")), role.reader.strings((*path, "args"))
    words = [((*path, "command", index), word) for index, word in enumerate(command)]
    words += [((*path, "args", index), word) for index, word in enumerate(args)]
    first = next((index for index, (_, word) in enumerate(words) if known.refers_to_deferred(word)), len(words))
    if first < len(words):
        word_path, word = words[first]
        if command and first == 0:
            message = f"{shown(word)} names the program by a variable whose value only the cluster knows"
            role.reader.add_problem(word_path, message, "a program", "write its name")
        first = first if command else 0  # an override replaces the args of an entrypoint as a whole
        role.container["args"] = [known.expanded_except_deferred(text) for _, text in words[first:]]
        message = (
            "Kubernetes replaces its variables, as before: this word and those after it are in `kubernetes.overrides`, for Kubernetes only"
        )
        role.reader.add_remark(word_path, message, "to run elsewhere, too, let the program or a shell read the variable itself")
    expanded = [known.expanded(text) for _, text in words[:first]]
    for word_path, word in words:
        known.remark_replacements(role, word_path, word)
    role.is_entrypoint = not command
    if command:
        role.set("command", expanded[: len(command)], (*path, "command"))
    if rest := expanded[len(command) :]:
        role.set("args", rest, (*path, "args"))
