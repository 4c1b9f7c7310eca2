"""Whether a namespace admits the pods of a run, all of them, and has room for them in its quotas.

A Job is admitted even if its pods are not: it then makes none, and says why only in events. So one pod of each kind is checked by itself, by
a dry run, in which quotas, limit ranges, Pod Security and everything else that admits pods there have a say.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from launcher.backend.kubernetes import diagnosis, notifier
from launcher.backend.kubernetes.client import Cluster, Object
from launcher.backend.kubernetes.errors import ForbiddenError, UnreachableError
from launcher.backend.kubernetes.node_capacity import amount, shown
from launcher.errors import LauncherError
from launcher.render.kubernetes.objects import TENSORBOARD
from launcher.spec.models import ClusterSpec
from launcher.spec.problems import all_of

# Resources that a quota may count in two ways: https://kubernetes.io/docs/concepts/policy/resource-quotas/#compute-resource-quota
_SHORT = {"cpu": "requests.cpu", "memory": "requests.memory", "ephemeral-storage": "requests.ephemeral-storage", "count/pods": "pods"}
_USED_UP = "exceeded quota: "  # by others as well: that pod waits
_NOBODY, _NOBODYS_ID = "x-of-nobody", "00000000-0000-4000-8000-000000000000"
_NOT_DRY = "does not support dry run"
_MAKE = {
    "PersistentVolumeClaim": "make it: kubectl apply -f CLAIM.yaml",
    "Secret": "make it: kubectl create secret generic {0} --from-literal=KEY=VALUE, or --from-file",
    "ConfigMap": "make it: kubectl create configmap {0} --from-file=FILE",
}
_FOR_PULLING = "make it: kubectl create secret docker-registry {0} --docker-server=HOST --docker-username=NAME --docker-password=WORD"
# How an answer names the pod of a dry run.
_NAMED = re.compile(r'checking Pod \S+: |pods "[^"]*" is forbidden: ')


@dataclass(frozen=True)
class PodSet:
    """Pods that are alike: a name for them, how many, and one of them. Without those that are `optional`, a run trains all the same."""

    name: str
    count: int
    pod: Object
    optional: bool = False


def pod_sets(made: Sequence[Object], helper: Object) -> list[PodSet]:
    """Return the pods that the objects of a run are to make, and the `helper` with which the launcher reads the run's volume now and then."""
    found = []
    own_accounts = {one["metadata"]["name"] for one in made if one["kind"] == "ServiceAccount"}  # which are not there yet
    for one in made:
        if one["kind"] == "Deployment":
            found.append(PodSet(TENSORBOARD, 1, _pod(one["spec"]["template"], "apps/v1", "ReplicaSet"), optional=True))
        for job in [one] if one["kind"] == "Job" else one["spec"]["replicatedJobs"] if one["kind"] == "JobSet" else ():
            spec = job["spec"] if one["kind"] == "Job" else job["template"]["spec"]
            role = spec["template"]["metadata"]["labels"]["app.kubernetes.io/component"]
            found.append(PodSet(role, int(spec["completions"]), _without_account(_pod(spec["template"], "batch/v1", "Job"), own_accounts)))
    return [*found, PodSet("the pod with which the launcher reads the volume", 0, helper, optional=True)]


def check(cluster: Cluster, wanted: Sequence[PodSet]) -> Iterator[tuple[str, str]]:
    """Yield in words why pods have to wait, or optional ones are refused, each with a remedy. Raises LauncherError with all that keeps tasks out for good."""
    refused: list[LauncherError] = []
    tasks: dict[str, float] = {}
    every: dict[str, float] = {}
    for pod_set in wanted:
        pod = pod_set.pod
        try:
            pod = cluster.create({**pod, "metadata": {**pod["metadata"], "namespace": cluster.namespace}}, dry_run=True)
        except ForbiddenError:  # a user who may create no pods: controllers create those of Jobs
            continue
        except UnreachableError:
            raise
        except LauncherError as error:
            # A webhook that is not asked in dry runs is asked later, for the pod itself.
            if _USED_UP not in error.message and _NOT_DRY not in error.message:
                found = diagnosis.of_events([{"type": "Warning", "message": error.message}])
                refusal = LauncherError(f"{pod_set.name}: {_NAMED.sub('', error.message)}", found.remedy if found else error.remedy)
                if pod_set.optional:
                    yield refusal.message, refusal.remedy
                else:
                    refused.append(refusal)
        for name, value in _takes(pod).items():  # with what limit ranges have added
            every[name] = every.get(name, 0.0) + pod_set.count * value
            tasks[name] = tasks.get(name, 0.0) + (0 if pod_set.optional else pod_set.count * value)
    for quota in cluster.listed_if_any("ResourceQuota"):
        refused += [LauncherError(message, "ask for less in the spec, or have the quota raised") for message in _beyond(quota, tasks)]
        yield from ((message, "free some of it, or have it raised") for message in _short(quota, every))
    if refused:
        raise LauncherError(
            f"{cluster.description()} does not admit the run: " + "; ".join(dict.fromkeys(one.message for one in refused)),
            "; ".join(dict.fromkeys(one.remedy for one in refused)),
        )


def absent(cluster: Cluster, wanted: Sequence[PodSet], made: Sequence[Object]) -> Iterator[tuple[str, str]]:
    """Yield each object that the pods of a run need and the cluster lacks: in words, with the command that creates it.

    Objects in `made` are the run's own. Objects that the user may not look at count as there.
    """
    own = {(one["kind"], one["metadata"]["name"]) for one in made}
    users: dict[tuple[str, str], list[str]] = {}
    for pod_set in wanted:
        for named in dict.fromkeys(_named(pod_set.pod["spec"])):
            users.setdefault(named, []).append(pod_set.name)
    for (what, name), who in users.items():
        if (what, name) not in own and not _is_there(cluster, what, name):
            called = {"PersistentVolumeClaim": "claim"}.get(what, what)
            yield (
                f"there is no {called} {name} in {cluster.description()}, and {all_of(who)} cannot start without",
                _MAKE[what].format(name),
            )
    for name in dict.fromkeys(one["name"] for pod_set in wanted for one in pod_set.pod["spec"].get("imagePullSecrets") or ()):
        if not _is_there(cluster, "Secret", name):
            yield f"there is no Secret {name} in {cluster.description()}, which is named for pulling images", _FOR_PULLING.format(name)


def missing_webhook_url(cluster: Cluster, spec: ClusterSpec) -> Iterator[tuple[str, str]]:
    """Yield that a run's webhook has no URL, in words, with the command that creates it; the run does not need it."""
    if spec.notify is None or spec.notify.webhook is None:
        return
    try:
        notifier.of_secret(cluster, spec.notify.webhook)
    except notifier.NoChannelError as lacking:
        yield f"{lacking.message}, which has the URL of notify.webhook: nobody is told by it", f"make it: {lacking.remedy}"
    except ForbiddenError:  # the attendant's pod may mount it all the same
        return


def _is_there(cluster: Cluster, kind: str, name: str) -> bool:
    try:
        return cluster.has(kind, name)
    except ForbiddenError:
        return True


def _named(spec: Object) -> Iterator[tuple[str, str]]:
    """Yield kind and name of each object that a pod refers to, except optional ones."""
    found: list[tuple[str, object]] = []
    for volume in spec.get("volumes") or ():
        found += [("PersistentVolumeClaim", {"name": (volume.get("persistentVolumeClaim") or {}).get("claimName")})]
        for one in [volume, *((volume.get("projected") or {}).get("sources") or ())]:
            secret = one.get("secret") or {}
            found += [("Secret", {**secret, "name": secret.get("name") or secret.get("secretName")}), ("ConfigMap", one.get("configMap"))]
    for container in [*(spec.get("initContainers") or ()), *spec["containers"]]:
        for one in container.get("env") or ():
            source = one.get("valueFrom") or {}
            found += [("Secret", source.get("secretKeyRef")), ("ConfigMap", source.get("configMapKeyRef"))]
        for one in container.get("envFrom") or ():
            found += [("Secret", one.get("secretRef")), ("ConfigMap", one.get("configMapRef"))]
    for kind, source in found:
        if isinstance(source, dict) and source.get("name") and not source.get("optional"):
            yield kind, str(source["name"])


def _beyond(quota: Object, taken: Mapping[str, float]) -> Iterator[str]:
    """Yield of what tasks take more in all than a quota ever allows."""
    for resource, needs, has, _ in _compared(quota, taken):
        if needs > has:
            yield f"its tasks take {shown(needs)} of {resource} in all, and the quota {quota['metadata']['name']} allows {shown(has)}"


def _short(quota: Object, taken: Mapping[str, float]) -> Iterator[str]:
    """Yield of what a run takes more than a quota has left, or ever has, where its tasks alone might fit."""
    for resource, needs, _, left in _compared(quota, taken):
        if needs > left:
            yield f"it takes {shown(needs)} of {resource} in all, and {shown(left)} are left of the quota {quota['metadata']['name']}"


def _compared(quota: Object, taken: Mapping[str, float]) -> Iterator[tuple[str, float, float, float]]:
    """Yield what is needed of each resource, allowed by a quota, and left of it; nothing of one that is for some pods alone."""
    if quota.get("spec", {}).get("scopes") or quota.get("spec", {}).get("scopeSelector"):
        return
    status = quota.get("status", {})
    for resource, hard in (status.get("hard") or {}).items():
        used = amount((status.get("used") or {}).get(resource, "0"))
        needs, has = (round(one, 6) for one in (taken.get(_SHORT.get(resource, resource), 0.0), amount(hard)))  # 3 times 100m is 300m
        if needs:
            yield resource, needs, has, max(0.0, round(has - used, 6))


def _takes(pod: Object) -> dict[str, float]:
    """Return what a pod takes, as quotas count it: https://kubernetes.io/docs/concepts/workloads/pods/init-containers/#resource-sharing-within-containers."""
    first = pod["spec"].get("initContainers") or []
    lasting = [*pod["spec"]["containers"], *(one for one in first if one.get("restartPolicy") == "Always")]
    found = {"pods": 1.0}
    for what in ("requests", "limits"):
        together, before = [_amounts(one, what) for one in lasting], [_amounts(one, what) for one in first]
        for name in {name for one in [*together, *before] for name in one}:
            total = sum(one.get(name, 0.0) for one in together)
            found[f"{what}.{name}"] = max([total, *(one.get(name, 0.0) for one in before)])  # those before run one after the other
    return found


def _amounts(container: Object, what: str) -> dict[str, float]:
    given = container.get("resources") or {}
    both = {**(given.get("limits") or {}), **(given.get("requests") or {})} if what == "requests" else given.get("limits") or {}
    return {name: amount(value) for name, value in both.items()}


def _without_account(pod: Object, accounts: Collection[str]) -> Object:
    """Return a pod that is of none of these accounts: it is refused where its account is not there."""
    if pod["spec"].get("serviceAccountName") not in accounts:
        return pod
    return {**pod, "spec": {key: value for key, value in pod["spec"].items() if key != "serviceAccountName"}}


def _pod(template: Object, api: str, owner: str) -> Object:
    """Return a pod of a template as its controller makes it: there are policies against pods that have none."""
    head = {key: value for key, value in template["metadata"].items() if key != "name"}
    of = {"apiVersion": api, "kind": owner, "name": _NOBODY, "uid": _NOBODYS_ID, "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**head, "generateName": f"{_NOBODY}-", "ownerReferences": [of]},
        "spec": template["spec"],
    }
