"""Reads the replicas of a TFJob as roles: their names and numbers, the strategy with these roles, and when tasks restart."""

from launcher.spec.problems import Path, all_of, shown
from launcher.tfjob import pod
from launcher.tfjob.draft import Draft, RoleDraft
from launcher.tfjob.reading import Table, section, walk

REPLICAS: Path = ("spec", "tfReplicaSpecs")
# A kind of replica in any spelling -> the role.
ROLES = {"chief": "chief", "master": "chief", "worker": "worker", "ps": "ps", "evaluator": "evaluator"}
_ORDER = ("chief", "worker", "ps", "evaluator")
# restartPolicy -> the role's `restart`; the default is left out.
_RESTARTS = {"OnFailure": "on_failure", "Never": "never", "ExitCode": "exit_code", "Always": "always"}
# TFJob's default where a role has no restartPolicy; it replaces any policy in the pod template.
_DEFAULT_POLICY = "Never"

# The roles among chief, worker and ps -> the strategy. It decides here which tasks wait for each other; the program itself decides how it trains.
STRATEGIES: dict[frozenset[str], str] = {
    frozenset({"chief"}): "single",
    frozenset({"worker"}): "multi_worker_mirrored",
    frozenset({"chief", "worker"}): "multi_worker_mirrored",
    frozenset({"worker", "ps"}): "parameter_server",
    frozenset({"chief", "worker", "ps"}): "parameter_server",
}


def _count(role: RoleDraft, path: Path) -> None:
    role.replicas = role.reading.number(path, 0) or 0


def _policy(role: RoleDraft, path: Path) -> None:
    policy = role.reading.text(path)
    if policy and policy not in _RESTARTS:
        role.reading.refuse(path, f"{shown(policy)} is not a restartPolicy", ", ".join(_RESTARTS), "write one of them")
    elif policy:
        role.restart_policy = policy, path


REPLICA: Table[RoleDraft] = {"replicas": _count, "restartPolicy": _policy, "template": section(pod.TEMPLATE)}


def read(draft: Draft) -> None:
    """Carry over the replicas."""
    reading = draft.reading
    replica_specs = reading.mapping(REPLICAS)
    if not replica_specs:
        reading.refuse(REPLICAS, "the TFJob has no replicas", "Chief, Worker, PS or Evaluator below spec.tfReplicaSpecs", "add them")
    seen: dict[str, str] = {}
    for kind in replica_specs:
        path = (*REPLICAS, kind)
        name = ROLES.get(kind.lower())
        if name is None:
            reading.refuse(path, f"`{kind}` is not a kind of replica", "Chief, Master, Worker, PS or Evaluator", "write one of them")
        elif name in seen:
            message = f"`{kind}` is the {name}, and so is `{seen[name]}`"
            reading.refuse(path, message, "each role once", "remove one of the two")
        else:
            seen[name] = kind
            _read_role(draft, RoleDraft(kind, name, path, reading))
    if replica_specs and not draft.roles and not reading.problems:
        reading.refuse(REPLICAS, "all replicas of the TFJob are 0", "at least one replica of one kind", "write the number of replicas")
    draft.roles.sort(key=lambda role: _ORDER.index(role.name))
    if draft.roles and not reading.problems:
        _choose_strategy(draft)
        _restarts(draft)
        _grace(draft)


def _read_role(draft: Draft, role: RoleDraft) -> None:
    walk(role.path, REPLICA, role)
    if role.replicas == 0:
        draft.reading.remark((*role.path, "replicas"), f"there are none: the {role.name} is left out")
        return
    if role.name in {"chief", "evaluator"} and role.replicas > 1:
        path = (*role.path, "replicas")
        draft.reading.refuse(path, f"{role.replicas} {role.kind}s, but a cluster has one", "1", "write 1; make the others workers")
    pod_spec = (*role.path, "template", "spec")
    if draft.reading.value(pod_spec) is None:
        expected = "template.spec with a container called tensorflow"
        draft.reading.refuse(role.path, f"the {role.kind} has no pod template", expected, "add it")
    elif draft.reading.value((*pod_spec, "containers")) is None:
        draft.reading.refuse(pod_spec, f"the {role.kind} has no container", "one container called tensorflow, as TFJob asks for", "add it")
    draft.roles.append(role)


def _choose_strategy(draft: Draft) -> None:
    """Choose the strategy. The only replica of a job becomes the chief, as its program does not see its kind."""
    reading = draft.reading
    draft.is_single_task = sum(role.replicas for role in draft.roles) == 1
    if draft.is_single_task:
        [role] = draft.roles
        if role.name != "chief":
            message = f"the only replica is the run's chief; its program has no TF_CONFIG, so it cannot see that it was the {role.kind}"
            reading.remark(role.path, message)
            role.name = "chief"
    elif (master := draft.roles[0]).kind.lower() == "master":
        draft.put(("tf_config",), {"master": True}, master.path)
        message = "is the run's chief; TF_CONFIG still calls it `master` (`tf_config: {master: true}`)"
        reading.remark(master.path, message, "if the program knows TensorFlow's newer name, `chief`, remove `tf_config`")
    present = frozenset(role.name for role in draft.roles) - {"evaluator"}
    strategy = STRATEGIES.get(present)
    if strategy is None:
        kinds = all_of(role.kind for role in draft.roles)
        expected = "a chief, workers, chief and workers, or workers and ps with or without a chief; an evaluator beside them"
        remedy = (
            "make the chief the first worker of a Worker with its settings" if "ps" in present and "chief" in present else "add workers"
        )
        reading.refuse(REPLICAS, f"a cluster of {kinds} has no counterpart", expected, remedy)
        return
    draft.put(("strategy",), strategy, REPLICAS)
    if draft.success == "all_workers" and not any(role.name == "worker" for role in draft.roles):
        del draft.spec["success"]
        draft.success = "chief"
        reading.remark(("spec", "successPolicy"), "there are no workers besides the leader: left out")


def _restarts(draft: Draft) -> None:
    for role in draft.roles:
        policy, path = _effective_policy(role)
        if policy != "Always":
            if policy != "OnFailure":
                role.put("restart", _RESTARTS[policy], path)
            continue
        decides = role.name == draft.leading_role or (role.name == "worker" and draft.success == "all_workers")
        if decides:
            role.reading.remark(path, f"the run succeeds with exit 0 of the {role.name}: it starts again only after failures (on_failure)")
        elif role.is_entrypoint:
            message = "Kubernetes starts an image's entrypoint again only after failures (on_failure)"
            role.reading.remark(path, message, "give the role the entrypoint's words as `command`, and `restart: always`")
        else:
            role.put("restart", _RESTARTS[policy], path)


def _effective_policy(role: RoleDraft) -> tuple[str, Path]:
    if role.template_restart_policy is None:
        return role.restart_policy or (_DEFAULT_POLICY, role.path)
    policy, path = role.template_restart_policy
    if role.restart_policy is None:
        message = f"becomes the role's `restart`; TFJob replaced the restartPolicy of a pod template by its default, {_DEFAULT_POLICY}"
        role.reading.remark(path, message, "write `restart: never` in the role to keep TFJob's behaviour")
        return policy, path
    if role.restart_policy[0] != policy:
        role.reading.remark(path, f"the restartPolicy of the {role.kind}, {role.restart_policy[0]}, holds, as with TFJob: left out")
    return role.restart_policy


def _grace(draft: Draft) -> None:
    """Give all tasks the longest of their grace periods; a role with a shorter one gets an override."""
    periods = [role.grace_period for role in draft.roles if role.grace_period is not None]
    if not periods:
        return
    seconds, path = max(periods, key=lambda period: period[0])
    if seconds >= 1:  # the minimum in a spec
        draft.put(("limits", "grace_period"), f"{seconds}s", path)
    for role in draft.roles:
        own = role.grace_period[0] if role.grace_period else 30  # Kubernetes' default
        if own != seconds or seconds < 1:
            role.pod["terminationGracePeriodSeconds"] = own
