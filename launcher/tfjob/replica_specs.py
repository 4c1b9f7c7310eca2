"""Reads the replicas of a TFJob as roles: their names and numbers, the strategy with these roles, and when tasks restart."""

from launcher.plan.role_rules import role_position
from launcher.spec.problems import Path, all_of, shown
from launcher.tfjob import pod
from launcher.tfjob.builder import RoleBuilder, SpecBuilder
from launcher.tfjob.field_reader import Table, section, walk
from launcher.tfjob.pod_containers import TENSORFLOW

REPLICAS: Path = ("spec", "tfReplicaSpecs")
# A kind of replica in any spelling -> the role.
ROLES = {"chief": "chief", "master": "chief", "worker": "worker", "ps": "ps", "evaluator": "evaluator"}
# restartPolicy -> the role's `restart`; on_failure, the spec's default, is not written.
_RESTARTS = {"OnFailure": "on_failure", "Never": "never", "ExitCode": "exit_code", "Always": "always"}
# TFJob's default for a role without restartPolicy. TFJob replaced the pod template's policy by it; here the template's policy stays.
_DEFAULT_POLICY = "Never"

# The roles among chief, worker and ps -> the strategy. It decides here which tasks wait for each other; the program itself decides how it trains.
_STRATEGY_OF_ROLES: dict[frozenset[str], str] = {
    frozenset({"chief"}): "single",
    frozenset({"worker"}): "multi_worker_mirrored",
    frozenset({"chief", "worker"}): "multi_worker_mirrored",
    frozenset({"worker", "ps"}): "parameter_server",
    frozenset({"chief", "worker", "ps"}): "parameter_server",
}


def _count(role: RoleBuilder, path: Path) -> None:
    role.replicas = role.reader.integer(path, 0) or 0


def _policy(role: RoleBuilder, path: Path) -> None:
    policy = role.reader.string(path)
    if policy and policy not in _RESTARTS:
        role.reader.add_problem(path, f"{shown(policy)} is not a restartPolicy", ", ".join(_RESTARTS), "write one of them")
    elif policy:
        role.restart_policy = policy, path


REPLICA: Table[RoleBuilder] = {"replicas": _count, "restartPolicy": _policy, "template": section(pod.TEMPLATE)}


def read(builder: SpecBuilder) -> None:
    """Carry over the replicas."""
    reader = builder.reader
    replica_specs = reader.mapping(REPLICAS)
    if not replica_specs:
        reader.add_problem(REPLICAS, "the TFJob has no replicas", "Chief, Worker, PS or Evaluator below spec.tfReplicaSpecs", "add them")
    seen: dict[str, str] = {}
    for kind in replica_specs:
        path = (*REPLICAS, kind)
        name = ROLES.get(kind.lower())
        if name is None:
            reader.add_problem(path, f"`{kind}` is not a kind of replica", "Chief, Master, Worker, PS or Evaluator", "write one of them")
        elif name in seen:
            message = f"`{kind}` is the {name}, and so is `{seen[name]}`"
            reader.add_problem(path, message, "each role once", "remove one of the two")
        else:
            seen[name] = kind
            _read_role(builder, RoleBuilder(kind, name, path, reader))
    if replica_specs and not builder.roles and not reader.problems:
        reader.add_problem(REPLICAS, "all replicas of the TFJob are 0", "at least one replica of one kind", "write the number of replicas")
    builder.roles.sort(key=lambda role: role_position(role.name))
    if builder.roles and not reader.problems:
        _choose_strategy(builder)
        _restarts(builder)
        _grace(builder)


def _read_role(builder: SpecBuilder, role: RoleBuilder) -> None:
    walk(role.path, REPLICA, role)
    if role.replicas == 0:
        builder.reader.add_remark((*role.path, "replicas"), f"there are none: the {role.name} is left out")
        return
    if role.name in {"chief", "evaluator"} and role.replicas > 1:
        path = (*role.path, "replicas")
        builder.reader.add_problem(path, f"{role.replicas} {role.kind}s, but a cluster has one", "1", "write 1; make the others workers")
    pod_spec = (*role.path, "template", "spec")
    if builder.reader.value(pod_spec) is None:
        expected = f"template.spec with a container called {TENSORFLOW}"
        builder.reader.add_problem(role.path, f"the {role.kind} has no pod template", expected, "add it")
    elif builder.reader.value((*pod_spec, "containers")) is None:
        builder.reader.add_problem(
            pod_spec, f"the {role.kind} has no container", f"one container called {TENSORFLOW}, as TFJob asks for", "add it"
        )
    builder.roles.append(role)


def _choose_strategy(builder: SpecBuilder) -> None:
    """Choose the strategy. The only replica of a job becomes the chief, as its program does not see its kind."""
    reader = builder.reader
    builder.is_single_task = sum(role.replicas for role in builder.roles) == 1
    if builder.is_single_task:
        [role] = builder.roles
        if role.name != "chief":
            message = f"the only replica is the run's chief; its program has no TF_CONFIG, so it cannot see that it was the {role.kind}"
            reader.add_remark(role.path, message)
            role.name = "chief"
    elif (master := builder.roles[0]).kind.lower() == "master":
        builder.set(("tf_config",), {"master": True}, master.path)
        message = "is the run's chief; TF_CONFIG still calls it `master` (`tf_config: {master: true}`)"
        reader.add_remark(master.path, message, "if the program knows TensorFlow's newer name, `chief`, remove `tf_config`")
    present = frozenset(role.name for role in builder.roles) - {"evaluator"}
    strategy = _STRATEGY_OF_ROLES.get(present)
    if strategy is None:
        kinds = all_of(role.kind for role in builder.roles)
        expected = "a chief, workers, chief and workers, or workers and ps with or without a chief; an evaluator beside them"
        remedy = "replace the chief by a Worker with the same pod template" if "ps" in present and "chief" in present else "add workers"
        reader.add_problem(REPLICAS, f"a cluster of {kinds} has no counterpart", expected, remedy)
        return
    builder.set(("strategy",), strategy, REPLICAS)
    if builder.success == "all_workers" and not any(role.name == "worker" for role in builder.roles):
        del builder.spec["success"]
        builder.success = "chief"
        reader.add_remark(("spec", "successPolicy"), "there are no workers besides the leader: left out")


def _restarts(builder: SpecBuilder) -> None:
    for role in builder.roles:
        policy, path = _effective_policy(role)
        if policy == "OnFailure":
            continue
        is_required = role.name == builder.leader_role or (role.name == "worker" and builder.success == "all_workers")
        if policy != "Always":
            role.set("restart", _RESTARTS[policy], path)
        elif is_required:
            role.reader.add_remark(
                path, f"the run succeeds when the {role.name} exits with 0, so it is started again only after failures (on_failure)"
            )
        elif role.is_entrypoint:
            message = "Kubernetes starts an image's entrypoint again only after failures (on_failure)"
            role.reader.add_remark(path, message, "give the role the entrypoint's words as `command`, and `restart: always`")
        else:
            role.set("restart", _RESTARTS[policy], path)


def _effective_policy(role: RoleBuilder) -> tuple[str, Path]:
    if role.template_restart_policy is None:
        return role.restart_policy or (_DEFAULT_POLICY, role.path)
    policy, path = role.template_restart_policy
    if role.restart_policy is None:
        message = f"becomes the role's `restart`; TFJob replaced the restartPolicy of a pod template by its default, {_DEFAULT_POLICY}"
        role.reader.add_remark(path, message, "write `restart: never` in the role to keep TFJob's behaviour")
        return policy, path
    if role.restart_policy[0] != policy:
        role.reader.add_remark(
            path, f"left out: the {role.kind}'s own restartPolicy, {role.restart_policy[0]}, takes precedence, as with TFJob"
        )
    return role.restart_policy


def _grace(builder: SpecBuilder) -> None:
    """Give all tasks the longest of their grace periods; a role with a shorter one gets an override."""
    periods = [role.grace_period for role in builder.roles if role.grace_period is not None]
    if not periods:
        return
    seconds, path = max(periods, key=lambda period: period[0])
    if seconds >= 1:  # a spec has no duration of 0
        builder.set(("limits", "grace_period"), f"{seconds}s", path)
    for role in builder.roles:
        own = role.grace_period[0] if role.grace_period else 30  # Kubernetes' default
        if own != seconds or seconds < 1:
            role.pod["terminationGracePeriodSeconds"] = own
