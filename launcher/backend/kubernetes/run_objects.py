"""A run's objects in the cluster: which they are, what the API server says of them before one is made, and their removal."""

import copy
import itertools
import time
from collections.abc import Callable, Iterable, Iterator

from launcher import images
from launcher.backend.kubernetes import admission, helper_pod, inventory, pod_status, run_record, status_source, storage_classes
from launcher.backend.kubernetes.client import Cluster, Object, status_of
from launcher.backend.kubernetes.pod_status import ClusterSnapshot
from launcher.backend.kubernetes.reconcile import lost
from launcher.backend.kubernetes.run_context import JOB_KINDS, ObjectRef
from launcher.errors import LauncherError, UsageError
from launcher.render.kubernetes import manifests
from launcher.render.kubernetes.objects import Run
from launcher.spec.kubernetes import SIDECARS_SINCE
from launcher.spec.role_programs import has_sidecars

# Kinds whose objects the run's record owns, in the order in which they are deleted: first those with pods, then those that the pods use.
OWNED = ("JobSet", "Job", "Deployment", "Service", "NetworkPolicy", "RoleBinding", "Role", "ServiceAccount", "ConfigMap")
# Kinds that a cluster may not know, or this user may not list.
_OPTIONAL_KINDS = frozenset({"JobSet", "RoleBinding", "Role", "ServiceAccount"})
DELETE_TIMEOUT = 120.0  # seconds in which deleted pods have ended by themselves or been killed
_FORGET_TIMEOUT = 10.0  # seconds in which the API forgets a pod
_LOST_FOR = 60.0  # seconds beyond its grace period after which nothing of a pod on a lost node saves any more
_POLL_INTERVAL = 0.5
_OTHER_NAME = "x-of-nobody"


def objects(run: Run, cluster: Cluster) -> list[Object]:
    """Return the run's objects in the order to apply them, in the cluster's namespace."""
    made: list[Object] = copy.deepcopy(manifests.objects(run))
    for one in made:
        one["metadata"]["namespace"] = cluster.namespace
        for subject in one.get("subjects") or ():
            subject["namespace"] = cluster.namespace
    return made


def check(cluster: Cluster, run: Run) -> Iterator[str]:
    """Let the API server check every object as if it were applied; yield what a person should know.

    Raises LauncherError with what it refuses; nothing has been made then.
    """
    made = objects(run, cluster)
    refuse_claim_of_others(cluster, run)
    if has_sidecars(run.spec):
        refuse_sidecars(cluster.version(), cluster.description())
    needed = [f"{image} ({images.build_command(image)} makes it)" if images.is_ours(image) else image for image in run.images]
    yield f"{cluster.description()}; its nodes need the image{'s' if len(needed) > 1 else ''} {', '.join(needed)}"
    yield from manifests.notes(run, [])
    if run.own_claim and run.storage and run.claim_access and run.storage.access not in {None, run.claim_access}:
        yield f"the claim {run.claim} is there and keeps its access mode, {run.claim_access}; storage.access asks for {run.storage.access}"
    yield from _lacking(cluster, run)
    for one in made:
        dry_run(cluster, one)
    wanted = admission.pod_sets(made, helper_pod.helper(run))
    for message, remedy in itertools.chain(
        admission.check(cluster, wanted),
        admission.missing_references(cluster, wanted, made),
        admission.missing_webhook_url(cluster, run.spec),
    ):
        yield f"{message}; {remedy}"


def _lacking(cluster: Cluster, run: Run) -> Iterator[str]:
    """Yield that the storage class is known not to offer what a new claim of the run asks for."""
    if not run.own_claim or run.claim_access is not None or run.access != "ReadWriteMany":
        return
    try:
        known = storage_classes.listed(cluster)
    except LauncherError:  # they may not be listed; a claim that gets no volume says why
        return
    name = storage_classes.chosen(run, known)
    if name in known and storage_classes.offers_many_nodes(known[name]) is False:
        yield f"the storage class {name} ({storage_classes.provisioner(known[name])}) does not offer ReadWriteMany: {storage_classes.remedies(run)}"


def dry_run(cluster: Cluster, made: Object) -> Object:
    """Return an object as the API server would have it after it was applied. Raises LauncherError with what it refuses."""
    if made["kind"] == "RoleBinding":
        return _dry_run_of_binding(cluster, made)
    if made["kind"] not in JOB_KINDS:
        return cluster.apply(made, dry_run=True)
    # By another name: one of an earlier start may be there, and cannot be changed. A set's must leave room for those of its pods.
    head = {key: value for key, value in made["metadata"].items() if key != "name"}
    head |= {"name": _OTHER_NAME} if made["kind"] == "JobSet" else {"generateName": f"{made['metadata']['name']}-"}
    try:
        return cluster.create({**made, "metadata": head}, dry_run=True)
    except LauncherError as error:
        if made["kind"] != "JobSet" or status_of(error) != 404:
            raise
        raise UsageError(
            f"{cluster.description()} knows no JobSet, which kubernetes.gang asks for",
            "have JobSet installed (https://jobset.sigs.k8s.io), or leave out kubernetes.gang",
        ) from error


def _dry_run_of_binding(cluster: Cluster, made: Object) -> Object:
    try:
        return cluster.apply(made, dry_run=True)
    except LauncherError as error:
        if status_of(error) != 404:  # its Role is not there yet, which is checked by itself
            raise
        return made


def refuse_claim_of_others(cluster: Cluster, run: Run) -> None:
    """Raise UsageError where a claim has the name of the run's and was not made for it: applied over, it would be deleted with the run."""
    claim = cluster.get("PersistentVolumeClaim", run.claim) if run.own_claim else None
    if claim is not None and claim["metadata"].get("labels", {}).get(pod_status.INSTANCE) != run.name:
        raise UsageError(
            f"the claim {run.claim} in {cluster.description()} was not made for this run",
            f"name it in the file, kubernetes: {{claim: {run.claim}}}, and the run keeps to a directory of its own on it; or name the run otherwise",
        )


def refuse_sidecars(version: tuple[int, int], where: str) -> None:
    """Raise UsageError where a cluster of that version does not end sidecars with their task: its pods would never end."""
    if version < SIDECARS_SINCE:
        there, since = (".".join(map(str, one)) for one in (version, SIDECARS_SINCE))
        raise UsageError(
            f"{where} is Kubernetes {there}, which does not end sidecars with their task",
            f"use a cluster of {since} or newer, or remove `sidecars`",
        )


def is_new_claim(cluster: Cluster, run: Run, meanwhile: Callable[[], object]) -> bool:
    """Return whether the run's claim is not there. Wait until one that is being deleted is gone, calling `meanwhile`."""
    there = cluster.get("PersistentVolumeClaim", run.claim)
    if there is not None and there["metadata"].get("deletionTimestamp"):

        def delete_finished() -> None:
            meanwhile()
            helper_pod.delete_finished(cluster, run.name)

        await_claim_deleted(cluster, run.claim, delete_finished)
        return True
    return there is None


def existing_objects(cluster: Cluster, run: str) -> list[ObjectRef]:
    """Return the objects of a run except its record, its pods, its data and the Jobs that a JobSet has made, in the order to delete them.

    Objects that have lost their labels are known by the record.
    """
    found = [
        ObjectRef(kind, one["metadata"]["name"], one["metadata"]["uid"])
        for kind in OWNED
        for one in (cluster.listed_if_any if kind in _OPTIONAL_KINDS else cluster.listed)(kind, status_source.labels_of(run))
        if pod_status.controller_of([one]) is None
    ]
    noted = cluster.get("ConfigMap", run_record.name_of(run))
    found += inventory.unlabelled(cluster, [one for one in inventory.made(noted) if one not in found])
    return sorted((one for one in found if one.name != run_record.name_of(run)), key=lambda one: OWNED.index(one.kind))


def delete(cluster: Cluster, one: ObjectRef) -> None:
    """Delete an object; another that was made since under its name stays."""
    cluster.delete(one.kind, one.name, uid=one.uid)


def remove(cluster: Cluster, run: str, there: Iterable[ObjectRef] | None = None) -> None:
    """Delete the run's objects, those that were `there` or else all, and wait until its pods are gone. Its record and its data stay."""
    for one in existing_objects(cluster, run) if there is None else there:
        delete(cluster, one)
    helper_pod.delete_finished(cluster, run)
    await_ended(cluster, run, DELETE_TIMEOUT)


def await_ended(cluster: Cluster, run: str, within: float, meanwhile: Callable[[], object] = bool) -> list[pod_status.Object]:
    """Wait until no pod is left of a run whose Jobs were deleted, calling `meanwhile`. Raises LauncherError with those that are.

    Returns the pods that did not end by themselves: those on lost nodes. They are deleted for good after `within` seconds, or when no others
    are left and these were deleted a minute and their grace period ago. Until then their programs may still save, cut off.
    """
    began = time.monotonic()
    while (pods := status_source.pods_of(cluster, run)) and time.monotonic() < began + within:
        meanwhile()
        saves = max(float(pod["spec"].get("terminationGracePeriodSeconds") or 0) for pod in pods)
        if len(_lost(cluster, pods, _LOST_FOR + saves)) == len(pods):
            break
        time.sleep(_POLL_INTERVAL)
    lost_ones = _lost(cluster, pods, 0)
    for pod in lost_ones:  # no kubelet is there to end it; its Job, which would hold on to it, is gone
        cluster.delete("Pod", pod["metadata"]["name"], grace=0, uid=pod["metadata"]["uid"])
    forgotten_by = time.monotonic() + _FORGET_TIMEOUT
    while pods := status_source.pods_of(cluster, run):
        if time.monotonic() > forgotten_by:
            names = ", ".join(str(pod["metadata"]["name"]) for pod in pods[:5])
            raise LauncherError(
                f"pods of {run} are still there after {time.monotonic() - began:.0f} s: {names}",
                "their node may be lost: kubectl get nodes; docs/kubernetes.md, A node lost, says how to give them up",
            )
        time.sleep(_POLL_INTERVAL)
    return lost_ones


def _lost(cluster: Cluster, pods: list[Object], lost_after: float) -> list[pod_status.Object]:
    return lost(ClusterSnapshot("", (), pods), cluster.now(), lost_after)


def delete_claim(cluster: Cluster, run: str) -> None:
    """Delete the claim of the run's own, and wait until it is gone. Raises LauncherError when it is there still."""
    cluster.delete("PersistentVolumeClaim", run)
    await_claim_deleted(cluster, run, lambda: helper_pod.delete_finished(cluster, run))


def await_claim_deleted(cluster: Cluster, claim: str, meanwhile: Callable[[], object]) -> None:
    """Wait until a claim that was deleted is gone, calling `meanwhile`. Raises LauncherError when it is there still."""
    deadline = time.monotonic() + DELETE_TIMEOUT
    while cluster.get("PersistentVolumeClaim", claim) is not None:
        meanwhile()
        if time.monotonic() > deadline:
            raise LauncherError(
                f"the PersistentVolumeClaim {claim} is still there {DELETE_TIMEOUT:.0f} s after it was deleted",
                f"something uses it: kubectl describe persistentvolumeclaims {claim} -n {cluster.namespace}",
            )
        time.sleep(_POLL_INTERVAL)


def clear(cluster: Cluster, run: str, meanwhile: Callable[[], object]) -> None:
    """Delete the Jobs of an earlier start, which cannot be changed, and wait until they and their pods are gone, calling `meanwhile`."""
    jobs = [one for one in existing_objects(cluster, run) if one.kind in JOB_KINDS]
    for one in jobs:
        delete(cluster, one)
    if jobs:
        await_ended(cluster, run, DELETE_TIMEOUT, meanwhile)
    await_workloads_deleted(cluster, run, meanwhile)


def await_workloads_deleted(cluster: Cluster, run: str, meanwhile: Callable[[], object] = bool) -> None:
    """Wait until the Jobs of a run are gone, and the Service that a JobSet has made: the garbage collector deletes what a JobSet owns.

    The next start makes some of these names. Raises LauncherError with those that are there still.
    """
    deadline = time.monotonic() + DELETE_TIMEOUT
    while left := _workloads(cluster, run):
        meanwhile()
        if time.monotonic() > deadline:
            raise LauncherError(
                f"{', '.join(left)} of {run} are still there {DELETE_TIMEOUT:.0f} s after they were deleted",
                f"something keeps them: kubectl get {' '.join(left)} -n {cluster.namespace} -o yaml",
            )
        time.sleep(_POLL_INTERVAL)


def _workloads(cluster: Cluster, run: str) -> list[str]:
    """Return the Jobs of a run, and the Service of its JobSet, as kubectl names them."""
    found = [f"job/{job['metadata']['name']}" for job in cluster.listed("Job", status_source.labels_of(run))]
    service = cluster.get("Service", run)
    is_of_set = service is not None and (pod_status.controller_of([service]) or "").startswith("jobset/")
    return [*found, f"service/{run}"] if is_of_set else found
