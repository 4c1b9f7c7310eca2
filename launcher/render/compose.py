"""Renders a plan as a Compose file: one service for each task, and one for TensorBoard. Pure.

https://docs.docker.com/reference/compose-file/ has the format. docs/docker.md says what the file promises.
"""

import ipaddress
import math
import os
from collections.abc import Mapping
from typing import Any

from launcher.errors import UsageError
from launcher.images import USER, all_for, is_trainer_image, spec_image, task_image
from launcher.plan import role_rules
from launcher.plan.addresses import TENSORBOARD_PORT, tf_config_text
from launcher.plan.container_paths import CONTAINER_CODE, CONTAINER_DATA, CONTAINER_RUNS
from launcher.plan.models import Plan, Task
from launcher.plan.task_groups import groups
from launcher.render import compose_extras, labels, parent_file, tensorboard_command
from launcher.render.compose_extras import PREPARE
from launcher.render.compose_values import IMAGE_VARIABLE, bind_relative, escaped, image, resource_limits
from launcher.render.labels import TENSORBOARD
from launcher.render.targets import RenderSource
from launcher.render.yaml_text import MERGE, spaced, text
from launcher.spec.container_rules import is_in_compose, is_mounted
from launcher.spec.models import ClusterSpec, TensorBoard
from launcher.spec.names import RUN_VOLUME, TMP
from launcher.spec.quantities import parse_memory
from launcher.spec.role_programs import container_secrets, has_init_containers, has_sidecars, has_tensorboard, storage_of
from launcher.spec.rules import is_directory_name
from trainer.strategies import TRAINING_STRATEGIES, is_server

# How often the engine restarts a container. It cannot distinguish exit codes, and the trainer retries by itself inside its container,
# so the engine only restarts a trainer that was killed or has no peers. See docs/decisions/0007.
_ENGINE_RESTARTS = 3

# The host gets no address on the tasks' network: `internal` shuts out other networks, but not programs on the host.
_NO_HOST = {"com.docker.network.bridge.inhibit_ipv4": "true"}

# A connection without an answer fails after 25 s instead of 15 minutes, and the request is sent on a new one. A container that is
# disconnected from the network and connected again may have a new address; connections to the old one never get an answer.
_TCP_RETRIES = {"net.ipv4.tcp_retries2": 6}

# Compose stops all tasks at the same time; servers stay until the chief has saved, and need this many seconds to exit after that.
_SERVER_EXTRA_GRACE = 10.0

_TENSORBOARD_HEALTH = f"import urllib.request as r; r.urlopen('http://127.0.0.1:{TENSORBOARD_PORT}/', timeout=5)"


def render(source: RenderSource) -> str:
    """Return the Compose file of a plan for docker. Raises UsageError for a setting that Compose cannot express."""
    document, anchors = compose(source)
    return _header(source) + spaced(text(document, anchors), "services", "networks", "volumes")


def compose(source: RenderSource) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the Compose file as plain mappings, and the mappings that services share, by the names of their anchors."""
    spec, plan = source.spec, source.plan
    common = labels.of_run(plan)
    environment = _shared_environment(plan)
    base = hardened = _base_container(spec, is_hardened=True)
    if spec.security == "image":  # containers other than the tasks' stay hardened
        base = _base_container(spec, is_hardened=False)
        hardened = {MERGE: base, **_changed_items(hardened, base)}
    role_services = {group.role: _role_service(spec, plan, group.first_task) for group in groups(plan)}
    task_defaults = {MERGE: base, **_changed_items(_common_items(list(role_services.values())), base)}
    anchors: dict[str, dict[str, Any]] = {"labels": common, "environment": environment, "container": base, "task": task_defaults}
    roles: dict[str, dict[str, Any]] = {
        role: {MERGE: task_defaults, **own}
        for role, role_service in role_services.items()
        if (own := _changed_items(role_service, task_defaults))
    }
    parent = {MERGE: environment, parent_file.VARIABLE: parent_file.packed()}
    injects_parent = any(map(role_rules.parent_is_injected, plan.tasks)) and parent_file.VARIABLE not in environment
    anchors |= {"parent": parent} if injects_parent else {}
    anchors |= roles | ({"hardened": hardened} if hardened is not base else {})
    devices = _devices(plan)
    prepared = compose_extras.prepared_volumes(source)
    services: dict[str, Any] = {PREPARE: _prepare(source, hardened, common, prepared)} if prepared else {}
    for task in plan.tasks:
        services[task.name] = {
            MERGE: roles.get(task.role, task_defaults),
            "hostname": task.name,
            "labels": {MERGE: common, **labels.of_task(plan, task)},
            "stop_grace_period": _seconds(_grace(plan, task)),
            "environment": {
                MERGE: parent if injects_parent and role_rules.parent_is_injected(task) else environment,
                **_own_environment(task, environment),
            },
            **_limits(task, devices.get(task.name)),
            **_volumes_and_depends_on(source, task, prepared),
        }
        services |= compose_extras.services(source, task, base, common, prepared)
    if spec.tensorboard is not None and has_tensorboard(spec):
        services[TENSORBOARD] = _tensorboard(spec, spec.tensorboard, plan, hardened, common)
    # No labels that depend on the spec: newer versions of Compose offer to recreate a volume whose labels have changed.
    volumes: dict[str, Any] = {RUN_VOLUME: {"labels": {labels.RUN: plan.name}}} if storage_of(spec) is not None else {}
    volumes |= {name: {"labels": {labels.SCRATCH: plan.name}} for name in prepared if name != RUN_VOLUME}
    document = {
        "name": plan.name,
        "x-labels": common,
        "x-environment": environment,
        "x-container": base,
        **({"x-hardened": hardened} if hardened is not base else {}),
        "x-task": task_defaults,
        **({"x-parent": parent} if injects_parent else {}),
        **{f"x-{role}": role_service for role, role_service in roles.items()},
        "services": services,
        "networks": _networks(spec, common),
        **({"volumes": volumes} if volumes else {}),
    }
    return document, anchors


def _header(source: RenderSource) -> str:
    spec, plan = source.spec, source.plan
    published = spec.tensorboard if has_tensorboard(spec) else None
    images = all_for(spec)
    has_volume = storage_of(spec) is not None
    verb, stored, next_up = "runs;  ", "results", "runs it again from its beginning"
    if spec.train is not None and plan.strategy in TRAINING_STRATEGIES:
        verb, stored, next_up = "trains;", "checkpoints", "continues from the last checkpoint" if has_volume else next_up
    elif spec.train is None and has_volume:
        stored, next_up = "your program's files", "starts your program again, with its files"
    tensorboard_note = f"; TensorBoard continues\n  {'':<33}on http://{_host(published.host)}:{published.port}" if published else ""
    removal_line = f"  docker compose -f FILE down -v   removes {stored} and logs too"
    lines = [
        f"{plan.name} for Docker Compose. Made by: {source.title}" if source.title else f"{plan.name} for Docker Compose.",
        f"It needs the image{'s' if len(images) > 1 else ''} {', '.join(images)}, and an engine with Compose 2.20 or newer.",
        *(
            [f"`launcher image build` builds ours; {IMAGE_VARIABLE} names another, such as one in a registry."]
            if any(map(is_trainer_image, images))
            else []
        ),
        f"  docker compose -f FILE up        {verb} every task ends by itself{tensorboard_note}",
        f"  docker compose -f FILE down      removes the containers; up {next_up}",
        *([removal_line] if has_volume else []),
        *(f"Note: {notice}." for notice in (*_notices(source), *plan.notices)),
    ]
    # A name or an option may have line breaks, which would end the comment.
    return "".join(f"# {part}\n" for line in lines for part in line.splitlines()) + "\n"


def _notices(source: RenderSource) -> list[str]:
    spec, plan = source.spec, source.plan
    notices = []
    if plan.deadline is not None:
        notices.append("limits.deadline holds under `launcher up --on docker`; Compose knows no deadline")
    if types := sorted({task.resources.gpu_type for task in plan.tasks if task.resources.gpu_type}):
        notices.append(f"Compose takes the host's GPUs as they are: that they are {', '.join(types)} is not checked")
    if by_code := sorted({task.role for task in plan.tasks if task.restart.when == "exit_code" and not role_rules.has_parent(task)}):
        notices.append(
            f"restart: exit_code of {', '.join(by_code)} holds under `launcher up --on docker`; Compose cannot distinguish exit codes, "
            "and starts none of these containers again"
        )
    if _downloads(spec):
        # The host is the gateway of that network, and TensorFlow listens on every address.
        notices.append(
            "data: download gives tasks access to other networks, by a network in which programs on the host can reach TensorFlow's port"
        )
    if any(map(role_rules.parent_is_injected, plan.tasks)):
        notices.append(
            f"{parent_file.VARIABLE} is the parent of your command, compressed by zlib, in base64; docs/programs.md says what it does"
        )
    secrets = {name for task in plan.tasks for name in task.secrets} | {name for name, _ in container_secrets(spec)}
    if secrets:
        file = f", or {os.path.relpath(spec.env_file, source.directory)} as `docker compose --env-file` reads it" if spec.env_file else ""
        notices.append(f"the environment that `docker compose up` is called in has to have {', '.join(sorted(secrets))}{file}")
    if spec.train is None and len(plan.tasks) > 1 and not all(map(role_rules.has_parent, plan.tasks)):
        notices.append(
            "tasks without the trainer's parent do not end with the run by themselves: `launcher up --on docker` or `down` ends them"
        )
    if has_sidecars(spec):
        notices.append("sidecars continue after their tasks: `launcher up --on docker` or `down` ends them")
    notices += ["Compose does not send the messages of `notify`; the supervisor of `launcher up --on docker` does"] if spec.notify else []
    if spec.storage is not None:
        notices.append("size, class, mount and access of storage are for Kubernetes; here only the engine's disk limits the volume")
    return notices


# Parts of every container


def _base_container(spec: ClusterSpec, *, is_hardened: bool) -> dict[str, Any]:
    rights: dict[str, Any] = {"user": f"{USER}:{USER}", "read_only": True, "cap_drop": ["ALL"]} if is_hardened else {}
    return {
        "image": image(spec_image(spec)),
        **rights,
        "security_opt": ["no-new-privileges:true"],
        "init": True,
        **({"tmpfs": ["/tmp:mode=1777"]} if is_hardened else {}),  # noqa: S108 - the container's own
        "logging": {"driver": "json-file", "options": {"max-size": "20m", "max-file": "5"}},
    }


def _role_service(spec: ClusterSpec, plan: Plan, task: Task) -> dict[str, Any]:
    """Return the settings that the services of a role share; `task` is one of its tasks."""
    has_parent = role_rules.has_parent(task)
    networks = ["cluster", *(["egress"] if _downloads(spec) else [])]
    command = [escaped(word) for word in task.command]
    replaces_entrypoint = not task.is_entrypoint
    shared: dict[str, Any] = {
        "image": image(task_image(task, spec)),
        **({"entrypoint": []} if replaces_entrypoint else {}),
        **({"command": command} if replaces_entrypoint or command else {}),
        **({"working_dir": escaped(directory)} if (directory := task.cwd or (None if task.image else TMP)) else {}),
        "restart": _restart(task),
        "shm_size": "1gb",
        "sysctls": _TCP_RETRIES,
        "networks": networks,
    }
    if has_parent:
        shared["healthcheck"] = {
            "test": ["CMD", *_health(task)],
            "interval": "30s",
            "timeout": "10s",
            "retries": 3,
            "start_period": _seconds(plan.start_timeout),
        }
    return shared


def _restart(task: Task) -> str:
    """Return when the engine restarts a task's container. With plain `docker compose up`, nothing else restarts a task without the trainer's parent."""
    rule, has_parent = task.restart, role_rules.has_parent(task)
    if not has_parent and rule.when != "on_failure":  # the engine cannot distinguish exit codes
        return "unless-stopped" if rule.when == "always" else "no"
    times = min(_ENGINE_RESTARTS, rule.max_restarts) if has_parent else rule.max_restarts
    return f"on-failure:{times}" if times else "no"


def _common_items(mappings: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the items that all mappings have with the same value."""
    first, *others = mappings
    return {key: value for key, value in first.items() if all(key in other and other[key] == value for other in others)}


def _changed_items(mapping: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """Return the items of a mapping that `base` lacks or has with another value."""
    merged = {**base.get(MERGE, {}), **base}
    return {key: value for key, value in mapping.items() if key not in merged or merged[key] != value}


def _health(task: Task) -> list[str]:
    """Return the health check of a task's container: its exit code is 0 or 1, and its output one line that says why."""
    parent = role_rules.PARENT_IN_VARIABLE if role_rules.parent_is_injected(task) else role_rules.TRAINER_COMMAND
    return [*map(escaped, parent), "--health"]


def _grace(plan: Plan, task: Task) -> float:
    return plan.grace_period + (_SERVER_EXTRA_GRACE if is_server(plan.strategy, task.role) else 0)


def _shared_environment(plan: Plan) -> dict[str, str | None]:
    """Return the variables that all tasks have with the same value."""
    shared = _common_items([_variables(task) for task in plan.tasks])
    # `TRAINER_EVENTS=text docker compose up` writes readable progress.
    parent = {parent_file.VARIABLE: parent_file.packed()} if all(map(role_rules.parent_is_injected, plan.tasks)) else {}
    home = {"HOME": TMP} if plan.tasks[0].is_hardened else {}
    return home | {"TRAINER_EVENTS": "${TRAINER_EVENTS:-json}"} | shared | parent


def _variables(task: Task) -> dict[str, str | None]:
    """Return a task's variables. None: `docker compose` takes the value from its own environment."""
    return {name: escaped(value) for name, value in task.env.items()} | dict.fromkeys(task.secrets)


def _own_environment(task: Task, shared: dict[str, str | None]) -> dict[str, str | None]:
    own = {name: value for name, value in _variables(task).items() if name not in shared}
    return own | {"TF_CONFIG": escaped(tf_config_text(task.tf_config))}


def _limits(task: Task, devices: dict[str, Any] | None) -> dict[str, Any]:
    resources = task.resources
    limits = resource_limits(resources.cpu, resources.memory)
    if devices:
        limits["deploy"] = {"resources": {"reservations": {"devices": [devices]}}}
    return limits


def _volumes_and_depends_on(source: RenderSource, task: Task, prepared: Mapping[str, str]) -> dict[str, Any]:
    spec, directory = source.spec, source.directory
    volumes: list[dict[str, Any]] = []
    if task.mounts_run_dir:
        volumes.append({"type": "volume", "source": RUN_VOLUME, "target": CONTAINER_RUNS})
    if spec.code is not None:
        volumes.append(bind_relative(spec.code, CONTAINER_CODE, directory))
    if spec.train is not None and is_directory_name(spec.train) and not is_mounted(filter(is_in_compose, spec.volumes), spec.train.data):
        volumes.append(bind_relative(spec.train.data, CONTAINER_DATA, directory))
    volumes += compose_extras.volume_mounts(source, task)
    needs_prepared = any(volume["source"] in prepared for volume in volumes)
    after = compose_extras.depends_on(source, task) or (compose_extras.on_success(PREPARE) if needs_prepared else {})
    return ({"depends_on": after} if after else {}) | ({"volumes": volumes} if volumes else {})


def _devices(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the GPUs of each task that requests some: by count for one task, by the host's device numbers for several.

    The engine gives every `count` the same first GPUs.
    """
    gpu_tasks = [task for task in plan.tasks if task.resources.gpus]
    device = {"driver": "nvidia", "capabilities": ["gpu"]}
    if len(gpu_tasks) == 1:
        return {gpu_tasks[0].name: {**device, "count": gpu_tasks[0].resources.gpus}}
    devices = {}
    first = 0
    for task in gpu_tasks:
        after = first + task.resources.gpus
        devices[task.name] = {**device, "device_ids": [str(number) for number in range(first, after)]}
        first = after
    return devices


# Containers beside the tasks


def _tensorboard(spec: ClusterSpec, tensorboard: TensorBoard, plan: Plan, base: dict[str, Any], common: dict[str, str]) -> dict[str, Any]:
    return {
        MERGE: base,
        **({"image": image(tensorboard.image)} if tensorboard.image else {}),
        "hostname": TENSORBOARD,
        "labels": {MERGE: common, labels.SERVICE: TENSORBOARD},
        "entrypoint": [],
        "command": tensorboard_command.command(spec, plan),
        "environment": {"HOME": TMP},
        "depends_on": {plan.required_tasks[0]: {"condition": "service_started"}},
        "restart": "unless-stopped",
        "healthcheck": {
            "test": ["CMD", "python", "-c", _TENSORBOARD_HEALTH],
            "interval": "30s",
            "timeout": "10s",
            "retries": 3,
            "start_period": "60s",
        },
        "networks": [TENSORBOARD],
        "ports": [{"host_ip": _host(tensorboard.host), "published": str(tensorboard.port), "target": TENSORBOARD_PORT, "protocol": "tcp"}],
        **resource_limits(tensorboard.cpu, None if tensorboard.memory is None else parse_memory(tensorboard.memory)),
        "volumes": [{"type": "volume", "source": RUN_VOLUME, "target": CONTAINER_RUNS, "read_only": True}],
    }


def _prepare(source: RenderSource, base: dict[str, Any], common: dict[str, str], prepared: Mapping[str, str]) -> dict[str, Any]:
    """Return the service that makes new volumes writable for the tasks' user; Docker does so by itself only with our own image.

    With `security: image` that user is not known, so all users may write to the volumes.
    """
    spec, plan = source.spec, source.plan
    to_all = spec.security == "image"
    own = {"image": image(task_image(plan.tasks[0], spec))} if storage_of(spec) is None else {}  # an image that the run needs anyway
    return {
        MERGE: base,
        **own,
        "labels": {MERGE: common, labels.SERVICE: PREPARE},
        "user": "0:0",
        "cap_add": ["FOWNER" if to_all else "CHOWN"],
        "entrypoint": [],
        "command": [*(["chmod", "1777"] if to_all else ["chown", f"{USER}:{USER}"]), *prepared.values()],
        "network_mode": "none",
        "volumes": [{"type": "volume", "source": name, "target": target} for name, target in prepared.items()],
    }


def _networks(spec: ClusterSpec, common: dict[str, str]) -> dict[str, Any]:
    networks: dict[str, Any] = {
        # TensorFlow executes any code that is sent to its port: only the run's own tasks may reach it.
        "cluster": {"internal": True, "driver_opts": _NO_HOST, "labels": common},
        **({TENSORBOARD: {"labels": common}} if has_tensorboard(spec) else {}),
    }
    if has_init_containers(spec):
        networks[compose_extras.INIT] = {"labels": common}
    if _downloads(spec):
        networks["egress"] = {"labels": common}
    return networks


def _downloads(spec: ClusterSpec) -> bool:
    return spec.train is not None and spec.train.data == "download"


# How Compose writes values


def _seconds(seconds: float) -> str:
    return f"{math.ceil(seconds)}s"


def _host(host: str) -> str:
    if host == "localhost":
        return "127.0.0.1"
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise UsageError(
            f"tensorboard.host is {host!r}; a port is published on an IP address", "write the address, such as 127.0.0.1 or 0.0.0.0"
        ) from None
    return host
