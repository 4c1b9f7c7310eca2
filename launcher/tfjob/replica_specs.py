"""The replicas of a TFJob as roles: names and numbers, which strategy has such roles, and when their tasks start again."""

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

# Which of chief, worker and ps there are -> the strategy. It says here who waits for whom; how the program trains is its own affair.
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
        role.reading.refuse(path, f"{shown(policy)} is no restartPolicy", ", ".join(_RESTARTS), "write one of them")
    elif policy:
        role.policy = policy, path


REPLICA: Table[RoleDraft] = {"replicas": _count, "restartPolicy": _policy, "template": section(pod.TEMPLATE)}


def read(draft: Draft) -> None:
    """Carry over the replicas."""
    reading = draft.reading
    given = reading.mapping(REPLICAS)
    if not given:
        reading.refuse(REPLICAS, "the TFJob has no replicas", "Chief, Worker, PS or Evaluator below spec.tfReplicaSpecs", "add them")
    seen: dict[str, str] = {}
    for kind in given:
        path = (*REPLICAS, kind)
        name = ROLES.get(kind.lower())
        if name is None:
            reading.refuse(path, f"`{kind}` is no kind of replica", "Chief, Master, Worker, PS or Evaluator", "write one of them")
        elif name in seen:
            message = f"`{kind}` is the {name}, and so is `{seen[name]}`"
            reading.refuse(path, message, "each role once", "remove one of the two")
        else:
            seen[name] = kind
            _read_role(draft, RoleDraft(kind, name, path, reading))
    if given and not draft.roles and not reading.problems:
        reading.refuse(REPLICAS, "all replicas of the TFJob are 0", "a replica of one kind, at least", "write how many there are to be")
    draft.roles.sort(key=lambda role: _ORDER.index(role.name))
    if draft.roles and not reading.problems:
        _shape(draft)
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
    pod = (*role.path, "template", "spec")
    if draft.reading.value(pod) is None:
        expected = "template.spec with a container called tensorflow"
        draft.reading.refuse(role.path, f"the {role.kind} has no pod template", expected, "add it")
    elif draft.reading.value((*pod, "containers")) is None:
        draft.reading.refuse(pod, f"the {role.kind} has no container", "one container called tensorflow, as TFJob asks for", "add it")
    draft.roles.append(role)


def _shape(draft: Draft) -> None:
    """Choose the strategy; a job of one replica is a chief, as what it is called means nothing to its program."""
    reading = draft.reading
    draft.is_alone = sum(role.replicas for role in draft.roles) == 1
    if draft.is_alone:
        [role] = draft.roles
        if role.name != "chief":
            message = f"the only replica is the run's chief; no TF_CONFIG shows its program that it was the {role.kind}"
            reading.remark(role.path, message)
            role.name = "chief"
    elif (master := draft.roles[0]).kind.lower() == "master":
        draft.put(("tf_config",), {"master": True}, master.path)
        message = "is the run's chief; TF_CONFIG goes on calling it `master` (`tf_config: {master: true}`)"
        reading.remark(master.path, message, "where the program knows TensorFlow's newer name, `chief`, remove `tf_config`")
    present = frozenset(role.name for role in draft.roles) - {"evaluator"}
    strategy = STRATEGIES.get(present)
    if strategy is None:
        there = all_of(role.kind for role in draft.roles)
        expected = "a chief, workers, chief and workers, or workers and ps with or without a chief; an evaluator beside them"
        remedy = (
            "make the chief the first worker of a Worker with its settings" if "ps" in present and "chief" in present else "add workers"
        )
        reading.refuse(REPLICAS, f"a cluster of {there} has no counterpart", expected, remedy)
        return
    draft.put(("strategy",), strategy, REPLICAS)
    if draft.success == "all_workers" and not any(role.name == "worker" for role in draft.roles):
        del draft.spec["success"]
        draft.success = "chief"
        reading.remark(("spec", "successPolicy"), "there are no workers beside the one that decides: left out")


def _restarts(draft: Draft) -> None:
    for role in draft.roles:
        policy, path = _effective_policy(role)
        if policy != "Always":
            if policy != "OnFailure":
                role.put("restart", _RESTARTS[policy], path)
            continue
        decides = role.name == draft.leading or (role.name == "worker" and draft.success == "all_workers")
        if decides:
            role.reading.remark(path, f"the run succeeds with exit 0 of the {role.name}: it starts again after failures alone (on_failure)")
        elif role.is_entrypoint:
            message = "Kubernetes starts an image's entrypoint again after failures alone (on_failure)"
            role.reading.remark(path, message, "give the role the entrypoint's words as `command`, and `restart: always`")
        else:
            role.put("restart", _RESTARTS[policy], path)


def _effective_policy(role: RoleDraft) -> tuple[str, Path]:
    if role.policy_of_template is None:
        return role.policy or (_DEFAULT_POLICY, role.path)
    policy, path = role.policy_of_template
    if role.policy is None:
        message = f"becomes the role's `restart`; TFJob put its default, {_DEFAULT_POLICY}, in place of that of a pod template"
        role.reading.remark(path, message, "write `restart: never` in the role, if it is to be as it was")
        return policy, path
    if role.policy[0] != policy:
        role.reading.remark(path, f"the restartPolicy of the {role.kind}, {role.policy[0]}, holds, as with TFJob: left out")
    return role.policy


def _grace(draft: Draft) -> None:
    """Give all tasks the longest of their grace periods; a role with a shorter one says so itself."""
    given = [role.grace for role in draft.roles if role.grace is not None]
    if not given:
        return
    seconds, path = max(given, key=lambda one: one[0])
    if seconds >= 1:  # a spec takes no less
        draft.put(("limits", "grace_period"), f"{seconds}s", path)
    for role in draft.roles:
        own = role.grace[0] if role.grace else 30  # Kubernetes' default
        if own != seconds or seconds < 1:
            role.pod["terminationGracePeriodSeconds"] = own
