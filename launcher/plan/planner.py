"""Makes the plan: a valid spec and a target become tasks with addresses, TF_CONFIG, environment and rules.

Facts about the machine are a parameter, so the same input always gives the same plan; the default is this machine.
"""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from launcher.errors import UsageError
from launcher.plan import machine as machines
from launcher.plan import role_rules
from launcher.plan.addresses import RUN_END_PORT, check_tf_config_size, cluster
from launcher.plan.container_paths import CONTAINER_CODE
from launcher.plan.machine import Machine
from launcher.plan.models import Plan, Resources, RestartRule, RoleName, SecretKey, Target, Task
from launcher.plan.target_rules import TARGET_RULES, TargetRules
from launcher.spec import role_programs
from launcher.spec.container_rules import is_in_compose, is_mounted
from launcher.spec.containers import Env, FromSecret
from launcher.spec.models import ClusterSpec, Limits, Role
from launcher.spec.quantities import parse_duration, parse_memory
from launcher.spec.role_programs import Program
from trainer.events import join_names
from trainer.settings import Ending, Restarts, Train, TrainerSettings
from trainer.strategies import STRATEGIES
from trainer.workloads.catalog import with_defaults

# A user's program may need any part of TensorFlow, much of which can wait forever with a single thread.
_MIN_INTER_OP_OF_COMMAND = 2
_UNBUFFERED = {"PYTHONUNBUFFERED": "1"}  # the output of a killed attempt is not lost


@dataclass(frozen=True)
class _TaskSpec:
    """One task without its address."""

    name: str
    role: RoleName
    index: int
    resources: Resources


def plan(
    spec: ClusterSpec,
    target: Target,
    *,
    run_dir: str | PurePath,
    digest: str = "",
    spec_dir: str | PurePath | None = None,
    machine: Machine | None = None,
) -> Plan:
    """Return the plan of `spec` on `target`.

    `run_dir` is the run directory as the tasks see it. `spec_dir` is the base of a relative `code` and the working directory of
    local tasks; by default the current directory. `machine` is by default this one.

    Raises LauncherError if TF_CONFIG would not fit in an environment variable, and UsageError for an image's entrypoint on this machine
    and for a `working_dir` that containers do not have.
    """
    task_specs = list(_task_specs(spec))
    names = [task.name for task in task_specs if task.role != "evaluator"]
    rules = TARGET_RULES[target]
    addresses = {name: rules.address(spec.name, name, position) for position, name in enumerate(names)}
    types = {"chief": "master"} if spec.tf_config.master else {}
    tf_cluster = cluster((types.get(task.role, task.role), addresses[task.name]) for task in task_specs if task.role != "evaluator")
    check_tf_config_size(tf_cluster)
    settings = _settings(spec, rules, str(run_dir), digest)
    notices: tuple[str, ...] = ()
    min_inter_op = STRATEGIES[spec.strategy].min_inter_op_threads if spec.train else _MIN_INTER_OP_OF_COMMAND
    if rules.in_containers:
        machine = None
        resource_variables = {task.name: _container_environment(task.resources.cpu, min_inter_op) for task in task_specs}
    else:
        _refuse_entrypoints(spec)
        machine = machine or machines.detect(with_gpus=any(task.resources.gpus for task in task_specs))
        resource_variables, notices = _local_environments(task_specs, machine, min_inter_op, _all_reduce_tasks(spec, task_specs))
    task_fields = _TaskFields(spec, rules, str(run_dir), settings, Path(spec_dir or os.curdir).absolute(), machine)
    role_fields = {role: task_fields.role_fields(role) for role in {task.role for task in task_specs}}
    leader = role_rules.leader(names)
    limits = spec.limits
    tasks = tuple(
        Task(
            name=task.name,
            role=task.role,
            index=task.index,
            address=addresses.get(task.name, ""),
            tf_config={"cluster": tf_cluster, "task": {"type": types.get(task.role, task.role), "index": task.index}},
            env=task_fields.environment(task.role, resource_variables[task.name]),
            resources=task.resources,
            mounts_run_dir=task_fields.has_run_dir
            and (task_fields.all_mount_run_dir or role_rules.mounts_run_dir(task.name, leader=leader)),
            **role_fields[task.role],
        )
        for task in task_specs
    )
    return Plan(
        name=spec.name,
        target=target,
        strategy=spec.strategy,
        spec_digest=digest,
        tasks=tasks,
        run_dir=str(run_dir) if task_fields.has_run_dir else "",
        start_timeout=parse_duration(limits.start_timeout),
        grace_period=parse_duration(limits.grace_period),
        deadline=parse_duration(limits.deadline) if limits.deadline else None,
        required_tasks=role_rules.required_tasks((task.name for task in task_specs), is_command=spec.train is None, success=spec.success),
        end_grace_periods=_end_grace_periods(spec),
        notices=(*notices, *rules.notices(spec)),
        spec_dir=str(task_fields.spec_dir),
        notify=spec.notify.model_dump(mode="json") if spec.notify else None,
        restarts_stalled=limits.on_stall == "restart",
    )


def _task_specs(spec: ClusterSpec) -> Iterator[_TaskSpec]:
    for role_name in role_rules.ROLE_ORDER:
        role: Role | None = getattr(spec.roles, role_name)
        if role is None:
            continue
        memory = parse_memory(role.memory) if role.memory is not None else None
        resources = Resources(cpu=role.cpu, memory=memory, gpus=role.gpus, gpu_type=role.gpu_type)
        for index in range(1 if role_name in role_rules.SINGLE_TASK_ROLES else role.replicas):
            yield _TaskSpec(role_rules.task_name(role_name, index), role_name, index, resources)


def _settings(spec: ClusterSpec, rules: TargetRules, run_dir: str, digest: str) -> TrainerSettings:
    chief = spec.roles.chief
    limits = spec.limits
    return TrainerSettings(
        run=spec.name,
        strategy=spec.strategy,
        run_dir=run_dir,
        scratch_dir=rules.scratch_dir(run_dir),
        spec_digest=digest,
        # Without GPUs, `mirrored` uses two logical CPU devices.
        local_replicas=((chief.gpus if chief else 0) or 2) if STRATEGIES[spec.strategy].on_devices else 1,
        has_evaluator=spec.roles.evaluator is not None,
        max_restarts=limits.max_restarts,
        restarts=_restarts(spec) or None,
        start_timeout=parse_duration(limits.start_timeout),
        orphan_timeout=parse_duration(limits.orphan_timeout),
        stall_timeout=parse_duration(limits.stall_timeout) if limits.stall_timeout else None,
        on_stall=None if limits.on_stall == "tell" else limits.on_stall,
        save_timeout=_unless_default(limits, "save_timeout"),
        grace_period=_unless_default(limits, "grace_period"),
        ending=_ending(spec, rules),
        unsupervised=[name for name, role in role_programs.roles_of(spec).items() if not role_programs.role_has_parent(spec, role)] or None,
        train=_train(spec, spec.train, rules) if spec.train else None,
    )


def _unless_default(limits: Limits, name: str) -> float | None:
    """Return a limit in seconds, None if it is the trainer's own default."""
    value = getattr(limits, name)
    return None if value == Limits.model_fields[name].default else parse_duration(value)


def _restarts(spec: ClusterSpec) -> dict[str, Restarts]:
    """Return the rules of restarts in place for the roles whose rules differ from the spec's."""
    default = Restarts(max_restarts=spec.limits.max_restarts)
    by_role = {
        name: Restarts(restart=role_programs.restarts_when(role), max_restarts=role_programs.max_restarts(spec, role))
        for name, role in role_programs.roles_of(spec).items()
    }
    return {name: restarts for name, restarts in by_role.items() if restarts != default}


def _refuse_entrypoints(spec: ClusterSpec) -> None:
    """Raise UsageError if a role runs the entrypoint of its image, which needs a container."""
    names = [
        name
        for name, role in role_programs.roles_of(spec).items()
        if spec.train is None and not role_programs.program_of(spec, role).command
    ]
    if names:
        image = role_programs.program_of(spec, role_programs.roles_of(spec)[names[0]]).image
        raise UsageError(
            f"roles {', '.join(names)}: they run the entrypoint of the image {image}, and tasks on this machine run without images",
            "give the program as `command`, or run it in containers: --on docker or --on kubernetes",
        )


def _ending(spec: ClusterSpec, rules: TargetRules) -> Ending | None:
    """Return how the tasks of a program learn of the run's end without a launcher.

    None for the built-in trainer, without containers, or if a required task has no parent.
    """
    roles = role_programs.roles_of(spec)
    if (
        spec.train is not None
        or not rules.in_containers
        or not all(role_programs.role_has_parent(spec, roles[role]) for role in role_programs.required_roles(spec))
    ):
        return None
    return Ending(
        port=RUN_END_PORT,
        success=spec.success,
        graces={str(role): seconds for role, seconds in _end_grace_periods(spec).items()},
        grace_period=parse_duration(spec.limits.grace_period),
    )


def _end_grace_periods(spec: ClusterSpec) -> dict[RoleName, float]:
    limits = spec.limits
    worker, evaluator, peer = map(parse_duration, (limits.worker_grace, limits.evaluator_grace, limits.grace_period))
    return role_rules.end_grace_periods(spec.strategy, worker=worker, evaluator=evaluator, peer=peer)


def _train(spec: ClusterSpec, train: Train, rules: TargetRules) -> Train:
    is_on_a_volume = is_mounted(filter(is_in_compose, spec.volumes), train.data)
    data = train.data if is_on_a_volume else rules.data_dir(train.data)
    return with_defaults(train.model_copy(update={"data": data}), spec.strategy)


@dataclass(frozen=True)
class _TaskFields:
    """Makes the fields of a run's tasks that depend only on spec, target and role: command, image, variables and secrets."""

    spec: ClusterSpec
    rules: TargetRules
    run_dir: str
    settings: TrainerSettings
    spec_dir: Path
    machine: Machine | None  # on which the tasks are processes; None if they run in containers

    @property
    def has_run_dir(self) -> bool:
        """Whether tasks have the run directory: always on this machine, in containers only with a volume for it."""
        return self.machine is not None or role_programs.storage_of(self.spec) is not None

    @property
    def all_mount_run_dir(self) -> bool:
        """Whether all tasks have the run directory, not only those in which the trainer needs it."""
        return role_programs.mount_of(self.spec) == "all" if self.rules.has_storage_mount else self.spec.train is None

    def role_fields(self, role_name: RoleName) -> dict[str, Any]:
        """Return the fields of Task that a role decides."""
        role = role_programs.roles_of(self.spec)[role_name]
        program = role_programs.program_of(self.spec, role)
        is_entrypoint = self.spec.train is None and not program.command
        command = self._local_command(program, self.machine) if self.machine else self._container_command(program)
        scope = role_rules.restart_scope(self.spec.strategy, role_name)
        return {
            "command": command,
            "restart": RestartRule(scope, role_programs.max_restarts(self.spec, role), role_programs.restarts_when(role)),
            "cwd": self._cwd(role),
            "image": program.image,
            "is_hardened": self.spec.security == "hardened",
            "is_entrypoint": is_entrypoint,
            "secrets": self.secrets(role_name),
        }

    def _local_command(self, program: Program, machine: Machine) -> tuple[str, ...]:
        """Return the command of the trainer's parent process, with the user's command behind `--`.

        -P keeps the working directory off sys.path, so that a user's own `logging.py` or `trainer/` does not replace ours.
        """
        parent = (machine.python, "-P", "-m", "trainer")
        return (*parent, "--", *program.command) if program.command else parent

    def _container_command(self, program: Program) -> tuple[str, ...]:
        """Return the command inside an image. For a user's image, the run supplies the trainer's parent, unless `supervise` is false."""
        if self.spec.train is not None:
            return role_rules.TRAINER_COMMAND
        if not program.command:
            return program.args
        if program.image:
            return (*self.rules.parent, "--", *program.command) if self.spec.supervise else program.command
        return (*role_rules.TRAINER_COMMAND, "--", *program.command)

    def code(self) -> str | None:
        if self.spec.code is None:
            return None
        return os.path.normpath(self.spec_dir / self.spec.code) if self.machine else CONTAINER_CODE

    def _cwd(self, role: Role) -> str | None:
        """Return the working directory of a role's tasks. Raises UsageError for a directory of this machine that containers do not have."""
        working_dir = role.working_dir
        if working_dir is None:
            return self.code() or (str(self.spec_dir) if self.machine else None)
        if self.machine or working_dir.startswith("/"):
            return os.path.normpath(self.spec_dir / working_dir)
        code = self.spec_dir / self.spec.code if self.spec.code is not None else None
        inside = Path(os.path.normpath(self.spec_dir / working_dir))
        if code is None or not inside.is_relative_to(os.path.normpath(code)):
            raise UsageError(
                f"working_dir is {working_dir}, a directory of this machine, which containers do not have",
                "write a path in the container, which starts with /, or a directory in `code`",
            )
        return str(PurePosixPath(CONTAINER_CODE, inside.relative_to(os.path.normpath(code))))

    def secrets(self, role_name: RoleName) -> dict[str, SecretKey]:
        """Return the variables of a role whose values come from secrets."""
        env = self._env(role_name).items()
        return {name: SecretKey(value.secret, value.key) for name, value in env if isinstance(value, FromSecret)}

    def _env(self, role_name: RoleName) -> Env:
        return {**self.spec.env, **role_programs.roles_of(self.spec)[role_name].env}

    def environment(self, role: RoleName, resource_variables: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of one task. The user's `env` may override the defaults, but not the variables that identify the task."""
        user = {name: value for name, value in self._env(role).items() if isinstance(value, str)}
        environment = {"GRPC_FAIL_FAST": "use_caller", **resource_variables, **user}
        environment |= {
            **({"RUN_DIR": self.run_dir} if self.has_run_dir else {}),
            "RUN_NAME": self.spec.name,
            "TRAINER_SETTINGS": self.settings.model_dump_json(exclude_none=True),
        }
        import_path = [self.code(), user.get("PYTHONPATH")]
        if machine := self.machine:
            environment |= {"TRAINER_EVENTS": "json"}
            # `python` in a command is then the launcher's, which has TensorFlow.
            environment["PATH"] = machines.search_path(os.path.dirname(machine.python), user.get("PATH", machine.path))  # noqa: PTH120
            import_path += [machine.python_path if "PYTHONPATH" not in user else None, machine.source]
        if any(import_path):
            environment["PYTHONPATH"] = machines.search_path(*import_path)
        return {name: value for name, value in environment.items() if name not in self.secrets(role)}


def _container_environment(cpu: float | None, min_inter_op: int) -> dict[str, str]:
    """Return the variables for a container: unbuffered output, and its number of threads, since TensorFlow would count all cores of the machine."""
    return _UNBUFFERED if cpu is None else _UNBUFFERED | _threads(max(1, round(cpu)), min_inter_op)


def _threads(count: int, min_inter_op: int) -> dict[str, str]:
    return {
        "TF_NUM_INTRAOP_THREADS": str(count),
        "TF_NUM_INTEROP_THREADS": str(max(min_inter_op, count)),
        "OMP_NUM_THREADS": str(count),
    }


def _all_reduce_tasks(spec: ClusterSpec, task_specs: list[_TaskSpec]) -> list[str]:
    """Return the tasks that must all train on GPUs or all on CPUs, as their gradients go by NCCL or by TCP: see the trainer's AllReduce."""
    all_reduces = spec.train is not None and STRATEGIES[spec.strategy].all_reduces
    return [task.name for task in task_specs if all_reduces and task.role != "evaluator"]


def _local_environments(
    task_specs: list[_TaskSpec], machine: Machine, min_inter_op: int, all_or_none: list[str]
) -> tuple[dict[str, dict[str, str]], tuple[str, ...]]:
    """Return each task's share of the machine as environment variables, and notices about missing GPUs."""
    counts = share_cores({task.name: task.resources.cpu for task in task_specs}, machine.cores)
    gpus = share_gpus({task.name: task.resources for task in task_specs}, machine.gpus, all_or_none=all_or_none)
    environments = {
        task.name: _UNBUFFERED | _threads(counts[task.name], min_inter_op) | {"CUDA_VISIBLE_DEVICES": ",".join(gpus.visible[task.name])}
        for task in task_specs
    }
    if not gpus.without:
        return environments, ()
    requested = sum(task.resources.gpus for task in task_specs)
    available = len(machine.gpus)
    return environments, (
        f"the spec asks for {requested} GPU{'s' * (requested != 1)}, this machine has {available}: these run without a GPU: {join_names(gpus.without, 5)}",
    )


def share_cores(requested: Mapping[str, float | None], cores: int) -> dict[str, int]:
    """Return each task's number of threads: its `cpu`, rounded, else a fair share of the remaining cores; at least 1.

    `requested` is task name -> `cpu`, None if the spec has none.
    """
    fixed = {name: max(1, round(cpu)) for name, cpu in requested.items() if cpu is not None}
    others = [name for name in requested if name not in fixed]
    rest = max(0, cores - sum(fixed.values()))
    each, left_over = divmod(rest, len(others)) if others else (0, 0)
    shared = {name: max(1, each + (1 if index < left_over else 0)) for index, name in enumerate(others)}
    return {name: fixed.get(name) or shared[name] for name in requested}


@dataclass(frozen=True)
class GpuShares:
    """The GPUs of each task, by name; `without` are the tasks that requested GPUs and get none."""

    visible: dict[str, tuple[str, ...]]
    without: tuple[str, ...]


def share_gpus(requested: Mapping[str, Resources], available: Sequence[str], *, all_or_none: Collection[str] = ()) -> GpuShares:
    """Give each task its own GPUs, first come first served; a task gets all it requested, or none.

    Either all tasks in `all_or_none` get theirs, or none does.
    """
    shares = _first_come(requested, available)
    if not set(all_or_none).intersection(shares.without):
        return shares
    others = _first_come({name: Resources() if name in all_or_none else resources for name, resources in requested.items()}, available)
    without = [name for name, resources in requested.items() if name in others.without or (name in all_or_none and resources.gpus)]
    return GpuShares(others.visible, tuple(without))


def _first_come(requested: Mapping[str, Resources], available: Sequence[str]) -> GpuShares:
    free = list(available)
    visible: dict[str, tuple[str, ...]] = {}
    without = []
    for name, resources in requested.items():
        fits = resources.gpus <= len(free)
        visible[name] = tuple(free[: resources.gpus]) if fits else ()
        if fits:
            del free[: resources.gpus]
        else:
            without.append(name)
    return GpuShares(visible, tuple(without))
