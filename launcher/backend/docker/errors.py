"""Errors of an engine, each with a remedy: one table."""

import re

from launcher.docker_cli import DockerError, engine_error, last_line
from launcher.errors import LauncherError

# Message of Compose or the engine -> what is wrong, what to do.
_KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        r"is not a docker command|unknown (?:docker )?command|unknown (?:shorthand )?flag: (?:--short|--ansi|'[fp]')",
        "the docker command has no Compose plugin",
        "install it (Debian, Ubuntu: docker-compose-v2 or docker-compose-plugin); `docker compose version` must answer",
    ),
    (
        r"port is already allocated|address already in use|ports are not available",
        "TensorBoard's port is taken",
        "end what uses it, or choose another: --set tensorboard.port=6007",
    ),
    (
        r"cannot assign requested address|no such device or address.*listen",
        "TensorBoard's address is not one of the engine's machine",
        "choose one that it has: --set tensorboard.host=127.0.0.1",
    ),
    (
        r"no space left on device|disk quota exceeded",
        "the engine's disk is full",
        "free some: `docker system df` shows what takes it, `docker system prune` removes what nothing uses",
    ),
    (
        r"nvidia-container-cli: device error|unknown device.*(?:gpu|nvidia)|unresolvable CDI devices",
        "the tasks ask for more GPUs than the engine's machine has",
        "ask for fewer, in `gpus` of a role, or give tasks to other machines: launcher up --on kubernetes",
    ),
    (
        r"could not select device driver|unknown or invalid runtime name: nvidia|nvidia-container-cli|failed to discover GPU|CDI device",
        "the engine has no GPUs available",
        "install the NVIDIA driver and the NVIDIA Container Toolkit on its machine, or train without: `gpus: 0` in its role",
    ),
    (
        r"tcp_retries2",
        "the engine cannot set net.ipv4.tcp_retries2 in a container",
        "its machine needs Linux 4.6 or newer (`docker info` shows its version)",
    ),
    (
        r"range of cpus is from",
        "a task asks for more cores than the engine's machine has",
        "ask for fewer in `cpu` of its role, or leave it out for no limit",
    ),
    (
        r"minimum memory limit allowed",
        "a task asks for less memory than a container needs",
        "ask for more in `memory` of its role, for example 2Gi",
    ),
    (
        r"didn't complete successfully",
        "an init container ended with an error, before its task could start",
        "correct its command in `init_containers`",
    ),
    (
        r"bind source path does not exist|invalid mount config for type \"bind\"",
        "the engine does not find a directory of the spec",
        "check `code`, `train.data` and `volumes`; an engine on another machine sees only its own directories",
    ),
    (
        r"pull access denied|manifest unknown|manifest for .* not found|no such image|repository does not exist|failed to resolve reference|localhost/v2",
        "the image was not found",
        "build it with `launcher image build`, or pull or push the one that the spec names",
    ),
    (
        r"all predefined address pools have been fully subnetted|could not find an available.*address pool",
        "the engine has no free address range for a network",
        "remove those that nothing uses: `docker network prune`",
    ),
)


def explain(output: str, action: str) -> LauncherError:
    """Return the error for the output of the engine or Compose during `action`."""
    if error := engine_error(output):
        return error
    reason = last_line(output)
    for pattern, message, remedy in _KNOWN:
        if re.search(pattern, output, re.IGNORECASE):
            return DockerError(f"{action} failed: {message}: {reason}", remedy, output)
    return DockerError(
        f"{action} failed: {reason}", "the reason is the engine's own message; `docker info` shows the engine's state", output
    )
