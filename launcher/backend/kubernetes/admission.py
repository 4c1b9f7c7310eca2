"""Check, before a start, that a namespace admits all pods of a run and has quota for them.

A Job is admitted even if its pods are not: it then creates none, and only events say why. So one pod of each kind is checked by itself, in a dry
run: quotas, limit ranges, Pod Security and all other admission controllers see it.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from launcher.backend.kubernetes import diagnosis, notifier
from launcher.backend.kubernetes.client import Cluster, Object
from launcher.backend.kubernetes.errors import ForbiddenError, TransientError
from launcher.backend.kubernetes.node_capacity import format_quantity, pod_resources
from launcher.errors import LauncherError
from launcher.render.kubernetes.objects import COMPONENT_LABEL, TENSORBOARD
from launcher.spec.models import ClusterSpec
from launcher.spec.problems import all_of
from launcher.spec.quantities import parse_quantity

# Resources that a quota may count under two names: https://kubernetes.io/docs/concepts/policy/resource-quotas/#compute-resource-quota
_QUOTA_NAMES = {"cpu": "requests.cpu", "memory": "requests.memory", "ephemeral-storage": "requests.ephemeral-storage", "count/pods": "pods"}
_QUOTA_EXCEEDED = "exceeded quota: "  # perhaps by other pods: then the pod waits
PLACEHOLDER_NAME, _PLACEHOLDER_UID = "tf-launcher-dry-run", "00000000-0000-4000-8000-000000000000"
_NO_DRY_RUN = "does not support dry run"
_CREATE = {
    "PersistentVolumeClaim": "create it: kubectl apply -f CLAIM.yaml",
    "Secret": "create it: kubectl create secret generic {0} --from-literal=KEY=VALUE, or --from-file",
    "ConfigMap": "create it: kubectl create configmap {0} --from-file=FILE",
}
_CREATE_FOR_PULLING = (
    "create it: kubectl create secret docker-registry {0} --docker-server=HOST --docker-username=NAME --docker-password=WORD"
)
# The part of an answer that names the pod of a dry run.
_POD_PREFIX = re.compile(r'checking Pod \S+: |pods "[^"]*" is forbidden: ')


@dataclass(frozen=True)
class PodSet:
    """Identical pods: a name for them, their number, and one of them. A run also trains without those that are `optional`."""

    name: str
    count: int
    pod: Object
    optional: bool = False


def pod_sets(manifests: Sequence[Object], helper: Object) -> list[PodSet]:
    """Return the pods that controllers will create for the objects of a run, and the `helper` with which the launcher reads the run's volume."""
    sets = []
    # Accounts that do not exist yet.
    new_accounts = {manifest["metadata"]["name"] for manifest in manifests if manifest["kind"] == "ServiceAccount"}
    for manifest in manifests:
        if manifest["kind"] == "Deployment":
            sets.append(PodSet(TENSORBOARD, 1, _pod(manifest["spec"]["template"], "apps/v1", "ReplicaSet"), optional=True))
        for job in [manifest] if manifest["kind"] == "Job" else manifest["spec"]["replicatedJobs"] if manifest["kind"] == "JobSet" else ():
            spec = job["spec"] if manifest["kind"] == "Job" else job["template"]["spec"]
            role = spec["template"]["metadata"]["labels"][COMPONENT_LABEL]
            sets.append(PodSet(role, int(spec["completions"]), _without_account(_pod(spec["template"], "batch/v1", "Job"), new_accounts)))
    return [*sets, PodSet("the pod with which the launcher reads the volume", 0, helper, optional=True)]


def check(cluster: Cluster, sets: Sequence[PodSet]) -> Iterator[tuple[str, str]]:
    """Yield why pods must wait, or optional ones are refused, each with a remedy. Raises LauncherError with all reasons why tasks are refused for good."""
    refused: list[LauncherError] = []
    tasks: dict[str, float] = {}
    total: dict[str, float] = {}
    for pod_set in sets:
        pod = pod_set.pod
        try:
            pod = cluster.create({**pod, "metadata": {**pod["metadata"], "namespace": cluster.namespace}}, dry_run=True)
        except ForbiddenError:  # a user who may create no pods: controllers create those of Jobs
            continue
        except TransientError:
            raise
        except LauncherError as error:
            # A webhook without dry runs decides later, about the pod itself.
            if _QUOTA_EXCEEDED not in error.message and _NO_DRY_RUN not in error.message:
                known = diagnosis.diagnose_events([{"type": "Warning", "message": error.message}])
                refusal = LauncherError(f"{pod_set.name}: {_POD_PREFIX.sub('', error.message)}", known.remedy if known else error.remedy)
                if pod_set.optional:
                    yield refusal.message, refusal.remedy
                else:
                    refused.append(refusal)
        for name, value in _usage(pod).items():  # the defaults of limit ranges included
            total[name] = total.get(name, 0.0) + pod_set.count * value
            tasks[name] = tasks.get(name, 0.0) + (0 if pod_set.optional else pod_set.count * value)
    for quota in cluster.list_or_empty("ResourceQuota"):
        refused += [LauncherError(message, "ask for less in the spec, or have the quota raised") for message in _over_limit(quota, tasks)]
        yield from ((message, "free some of it, or have it raised") for message in _over_remaining(quota, total))
    if refused:
        raise LauncherError(
            f"{cluster.description()} does not admit the run: " + "; ".join(dict.fromkeys(error.message for error in refused)),
            "; ".join(dict.fromkeys(error.remedy for error in refused)),
        )


def missing_references(cluster: Cluster, sets: Sequence[PodSet], manifests: Sequence[Object]) -> Iterator[tuple[str, str]]:
    """Yield a message for each object that the pods of a run need and the cluster lacks, with the command that creates it.

    `manifests` are the run's own objects. An object that the user may not read counts as existing.
    """
    own = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests}
    users: dict[tuple[str, str], list[str]] = {}
    for pod_set in sets:
        for reference in dict.fromkeys(_references(pod_set.pod["spec"])):
            users.setdefault(reference, []).append(pod_set.name)
    for (kind, name), names in users.items():
        if (kind, name) not in own and not _exists(cluster, kind, name):
            called = {"PersistentVolumeClaim": "claim"}.get(kind, kind)
            yield (
                f"there is no {called} {name} in {cluster.description()}, and {all_of(names)} cannot start without it",
                _CREATE[kind].format(name),
            )
    for name in dict.fromkeys(secret["name"] for pod_set in sets for secret in pod_set.pod["spec"].get("imagePullSecrets") or ()):
        if not _exists(cluster, "Secret", name):
            yield (
                f"there is no Secret {name} in {cluster.description()}, which kubernetes.image_pull_secrets names",
                _CREATE_FOR_PULLING.format(name),
            )


def missing_webhook_url(cluster: Cluster, spec: ClusterSpec) -> Iterator[tuple[str, str]]:
    """Yield a message if a run's webhook has no URL, with the command that creates it. The run starts without it."""
    if spec.notify is None or spec.notify.webhook is None:
        return
    try:
        notifier.webhook_from_secret(cluster, spec.notify.webhook)
    except notifier.NoChannelError as error:
        yield f"{error.message}, which has the URL of notify.webhook: no message is sent to it", f"create it: {error.remedy}"
    except ForbiddenError:  # the attendant's pod can still mount it
        return


def _exists(cluster: Cluster, kind: str, name: str) -> bool:
    try:
        return cluster.has(kind, name)
    except ForbiddenError:
        return True


def _references(spec: Object) -> Iterator[tuple[str, str]]:
    """Yield kind and name of each object that a pod refers to, except optional ones."""
    refs: list[tuple[str, object]] = []
    for volume in spec.get("volumes") or ():
        refs += [("PersistentVolumeClaim", {"name": (volume.get("persistentVolumeClaim") or {}).get("claimName")})]
        for volume_source in [volume, *((volume.get("projected") or {}).get("sources") or ())]:
            secret = volume_source.get("secret") or {}
            refs += [
                ("Secret", {**secret, "name": secret.get("name") or secret.get("secretName")}),
                ("ConfigMap", volume_source.get("configMap")),
            ]
    for container in [*(spec.get("initContainers") or ()), *spec["containers"]]:
        for variable in container.get("env") or ():
            source = variable.get("valueFrom") or {}
            refs += [("Secret", source.get("secretKeyRef")), ("ConfigMap", source.get("configMapKeyRef"))]
        for env_source in container.get("envFrom") or ():
            refs += [("Secret", env_source.get("secretRef")), ("ConfigMap", env_source.get("configMapRef"))]
    for kind, source in refs:
        if isinstance(source, dict) and source.get("name") and not source.get("optional"):
            yield kind, str(source["name"])


def _over_limit(quota: Object, needed: Mapping[str, float]) -> Iterator[str]:
    """Yield a message for each resource of which the tasks need more than the quota allows."""
    for resource, needs, allowed, _ in _compare(quota, needed):
        if needs > allowed:
            yield f"its tasks take {format_quantity(needs)} of {resource} in all, and the quota {quota['metadata']['name']} allows {format_quantity(allowed)}"


def _over_remaining(quota: Object, needed: Mapping[str, float]) -> Iterator[str]:
    """Yield a message for each resource of which a run needs more than the quota has left."""
    for resource, needs, _, left in _compare(quota, needed):
        if needs > left:
            yield f"it takes {format_quantity(needs)} of {resource} in all, and {format_quantity(left)} are left of the quota {quota['metadata']['name']}"


def _compare(quota: Object, needed: Mapping[str, float]) -> Iterator[tuple[str, float, float, float]]:
    """Yield each resource that the quota limits, with the amounts needed, allowed and left; nothing for a quota that only counts some pods."""
    if quota.get("spec", {}).get("scopes") or quota.get("spec", {}).get("scopeSelector"):
        return
    status = quota.get("status", {})
    for resource, hard in (status.get("hard") or {}).items():
        used = parse_quantity((status.get("used") or {}).get(resource, "0"))
        # Rounded, so that 3 times 100m is 300m.
        needs, allowed = (round(amount, 6) for amount in (needed.get(_QUOTA_NAMES.get(resource, resource), 0.0), parse_quantity(hard)))
        if needs:
            yield resource, needs, allowed, max(0.0, round(allowed - used, 6))


def _usage(pod: Object) -> dict[str, float]:
    """Return the resources of a pod by the names that quotas have for them."""
    sections = {section: pod_resources(pod, section) for section in ("requests", "limits")}
    return {"pods": 1.0} | {f"{section}.{name}": value for section, amounts in sections.items() for name, value in amounts.items()}


def _without_account(pod: Object, accounts: Collection[str]) -> Object:
    """Return a pod without its service account if that is one of `accounts`: a pod is refused while its account does not exist."""
    if pod["spec"].get("serviceAccountName") not in accounts:
        return pod
    return {**pod, "spec": {key: value for key, value in pod["spec"].items() if key != "serviceAccountName"}}


def _pod(template: Object, api: str, owner_kind: str) -> Object:
    """Return a pod of a template with an owner, as its controller creates it: policies may refuse pods without one."""
    metadata = {key: value for key, value in template["metadata"].items() if key != "name"}
    owner_reference = {"apiVersion": api, "kind": owner_kind, "name": PLACEHOLDER_NAME, "uid": _PLACEHOLDER_UID, "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "generateName": f"{PLACEHOLDER_NAME}-", "ownerReferences": [owner_reference]},
        "spec": template["spec"],
    }
