"""A run's objects in the cluster: their manifests, their check by the API server before a start, and their deletion."""

import copy
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Iterator

from launcher import images
from launcher.backend.kubernetes import (
    admission,
    helper_pod,
    missing_objects,
    object_fields,
    pod_status,
    run_record,
    status_reader,
    storage_classes,
)
from launcher.backend.kubernetes.client import Cluster, Object, http_status
from launcher.backend.kubernetes.object_fields import is_being_deleted, label
from launcher.backend.kubernetes.reconcile import lost_pods
from launcher.backend.kubernetes.run_context import BACKEND, JOB_KINDS, ObjectRef
from launcher.errors import LauncherError, UsageError
from launcher.plan import planner
from launcher.plan.container_paths import CONTAINER_RUNS
from launcher.render.kubernetes import manifests, storage
from launcher.render.kubernetes.objects import INSTANCE_LABEL, Run
from launcher.spec.kubernetes import SIDECARS_SINCE
from launcher.spec.models import ClusterSpec
from launcher.spec.role_programs import has_sidecars

# Kinds of objects that the run's record owns, in the order of deletion: first those with pods, then those that the pods use.
_OWNED = ("JobSet", "Job", "Deployment", "Service", "NetworkPolicy", "RoleBinding", "Role", "ServiceAccount", "ConfigMap")
_DELETE_TIMEOUT = 120.0  # seconds within which deleted pods end or are killed
_REMOVAL_TIMEOUT = 10.0  # seconds within which the API server drops a deleted pod
_LOST_MARGIN = 60.0  # seconds beyond the grace period after which a pod on a lost node no longer saves
_POLL_INTERVAL = 0.5
_MODES = ("ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")  # the widest first


def run_of_spec(spec: ClusterSpec, image: str | None = None) -> Run:
    """Return the run of a spec; `image`, if given, replaces the spec's."""
    return Run(spec, planner.plan(spec, BACKEND, run_dir=f"{CONTAINER_RUNS}/{spec.name}"), image or images.spec_image(spec))


def with_claim_access(cluster: Cluster, run: Run) -> Run:
    """Return the run with the access mode of its existing claim, the widest of several: a claim's mode cannot be changed."""
    claim = cluster.get("PersistentVolumeClaim", run.claim) if run.storage is not None else None
    if claim is None or is_being_deleted(claim):
        return run
    modes = claim["spec"].get("accessModes") or ()
    return dataclasses.replace(run, claim_access=next((mode for mode in _MODES if mode in modes), None))


def objects(run: Run, cluster: Cluster) -> list[Object]:
    """Return the manifests of a run's objects for the cluster's namespace, in the order to apply them."""
    result: list[Object] = copy.deepcopy(manifests.objects(run))
    for manifest in result:
        manifest["metadata"]["namespace"] = cluster.namespace
        for subject in manifest.get("subjects") or ():
            subject["namespace"] = cluster.namespace
    return result


def check(cluster: Cluster, run: Run) -> Iterator[str]:
    """Let the API server check every object in a dry run; yield notices for the user.

    Raises LauncherError if it refuses an object; nothing was created then.
    """
    run_manifests = objects(run, cluster)
    refuse_claim_of_others(cluster, run)
    if has_sidecars(run.spec):
        require_sidecar_support(cluster.version(), cluster.description())
    image_texts = [
        f"{image} ({images.build_command(image)} builds it)" if images.is_trainer_image(image) else image for image in run.images
    ]
    yield f"{cluster.description()}; its nodes need the image{'s' if len(image_texts) > 1 else ''} {', '.join(image_texts)}"
    if one_node := storage.notice(run):
        yield one_node
    if run.has_own_claim and run.storage and run.claim_access and run.storage.access not in {None, run.claim_access}:
        yield f"the claim {run.claim} exists and keeps its access mode, {run.claim_access}; storage.access asks for {run.storage.access}"
    yield from _access_mode_notice(cluster, run)
    for manifest in run_manifests:
        dry_run(cluster, manifest)
    sets = admission.pod_sets(run_manifests, helper_pod.helper(run))
    for message, remedy in itertools.chain(
        admission.check(cluster, sets),
        admission.missing_references(cluster, sets, run_manifests),
        admission.missing_webhook_url(cluster, run.spec),
    ):
        yield f"{message}; {remedy}"


def _access_mode_notice(cluster: Cluster, run: Run) -> Iterator[str]:
    """Yield a message if the storage class is known not to offer the access mode of the run's new claim."""
    if not run.has_own_claim or run.claim_access is not None or run.access != "ReadWriteMany":
        return
    try:
        known = storage_classes.by_name(cluster)
    except LauncherError:  # the user may not list them; a claim without a volume reports why
        return
    name = storage_classes.chosen(run, known)
    if name in known and storage_classes.offers_many_nodes(known[name]) is False:
        yield f"the storage class {name} ({storage_classes.provisioner(known[name])}) does not offer ReadWriteMany: {storage_classes.remedies(run)}"


def dry_run(cluster: Cluster, manifest: Object) -> Object:
    """Return an object as the API server would store it. Raises LauncherError if it refuses the object."""
    if manifest["kind"] == "RoleBinding":
        return _dry_run_of_binding(cluster, manifest)
    if manifest["kind"] not in JOB_KINDS:
        return cluster.apply(manifest, dry_run=True)
    # Under another name: one of an earlier start may exist, and cannot be changed. A JobSet's name must leave room for its pods' names.
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "name"}
    metadata |= (
        {"name": admission.PLACEHOLDER_NAME} if manifest["kind"] == "JobSet" else {"generateName": f"{manifest['metadata']['name']}-"}
    )
    try:
        return cluster.create({**manifest, "metadata": metadata}, dry_run=True)
    except LauncherError as error:
        if manifest["kind"] != "JobSet" or http_status(error) != 404:
            raise
        raise UsageError(
            f"{cluster.description()} knows no JobSet, which kubernetes.gang asks for",
            "have JobSet installed (https://jobset.sigs.k8s.io), or leave out kubernetes.gang",
        ) from error


def _dry_run_of_binding(cluster: Cluster, manifest: Object) -> Object:
    try:
        return cluster.apply(manifest, dry_run=True)
    except LauncherError as error:
        if http_status(error) != 404:  # its Role does not exist yet, and is checked separately
            raise
        return manifest


def refuse_claim_of_others(cluster: Cluster, run: Run) -> None:
    """Raise UsageError if a claim of this name was not created for the run: `apply` would adopt it, and `down --delete-data` delete it."""
    claim = cluster.get("PersistentVolumeClaim", run.claim) if run.has_own_claim else None
    if claim is not None and label(claim, INSTANCE_LABEL) != run.name:
        raise UsageError(
            f"the claim {run.claim} in {cluster.description()} was not created for this run",
            f"name it in the file, kubernetes: {{claim: {run.claim}}}, and the run uses its own directory on it; or give the run another name",
        )


def require_sidecar_support(version: tuple[int, int], where: str) -> None:
    """Raise UsageError if a cluster of that version does not end sidecars with their task: its pods would never end."""
    if version < SIDECARS_SINCE:
        current, needed = (".".join(map(str, one)) for one in (version, SIDECARS_SINCE))
        raise UsageError(
            f"{where} is Kubernetes {current}, which does not end sidecars with their task",
            f"use a cluster of {needed} or newer, or remove `sidecars`",
        )


def is_new_claim(cluster: Cluster, run: Run, on_poll: Callable[[], object]) -> bool:
    """Wait until a claim that is being deleted is gone, calling `on_poll`; return whether the run's claim must be created."""
    claim = cluster.get("PersistentVolumeClaim", run.claim)
    if claim is not None and is_being_deleted(claim):

        def delete_finished() -> None:
            on_poll()
            helper_pod.delete_finished(cluster, run.name)

        _await_claim_deleted(cluster, run.claim, delete_finished)
        return True
    return claim is None


def existing_objects(cluster: Cluster, run: str) -> list[ObjectRef]:
    """Return the objects of a run except its record, its pods, its data and the Jobs of a JobSet, in the order to delete them.

    Objects that have lost their labels are found by the record. Those of an attendant that the user may not read are left out.
    """
    found = [
        ObjectRef.of(kind, obj)
        for kind in _OWNED
        for obj in missing_objects.list_kind(cluster, run, kind)
        if pod_status.controller_of([obj]) is None
    ]
    record = cluster.get("ConfigMap", run_record.name_of(run))
    recorded = missing_objects.read_objects(cluster, [ref for ref in run_record.recorded_objects(record) if ref not in found])
    found += [ref for ref, obj in recorded.items() if obj is not None]
    return sorted((ref for ref in found if ref.name != run_record.name_of(run)), key=lambda ref: _OWNED.index(ref.kind))


def delete(cluster: Cluster, ref: ObjectRef) -> None:
    """Delete an object; a later one of its name stays."""
    cluster.delete(ref.kind, ref.name, uid=ref.uid)


def remove(cluster: Cluster, run: str, existing: Iterable[ObjectRef] | None = None) -> None:
    """Delete these objects of the run, all by default, and wait until its pods are gone. Its record and its data stay."""
    for ref in existing_objects(cluster, run) if existing is None else existing:
        delete(cluster, ref)
    helper_pod.delete_finished(cluster, run)
    await_pods_deleted(cluster, run, _DELETE_TIMEOUT)


def await_pods_deleted(
    cluster: Cluster, run: str, within: float, on_poll: Callable[[], object] | None = None
) -> list[object_fields.Object]:
    """Wait until all pods of a run whose Jobs were deleted are gone, calling `on_poll`. Raises LauncherError with those that remain.

    Force-delete and return the pods of lost nodes: after `within` seconds, or once only such pods are left and their grace period ended a minute
    ago. Until then a program on the disconnected node may still be saving.
    """
    began = time.monotonic()
    while (pods := status_reader.pods_of(cluster, run)) and time.monotonic() < began + within:
        if on_poll is not None:
            on_poll()
        if len(lost_pods(pods, cluster.now(), _LOST_MARGIN + max(map(_grace_period, pods)))) == len(pods):
            break
        time.sleep(_POLL_INTERVAL)
    lost = lost_pods(pods, cluster.now(), 0)
    for pod in lost:  # no kubelet ends it, and its Job, which would keep it, is gone
        cluster.delete("Pod", pod["metadata"]["name"], grace=0, uid=pod["metadata"]["uid"])
    deadline = time.monotonic() + _REMOVAL_TIMEOUT
    while pods := status_reader.pods_of(cluster, run):
        if time.monotonic() > deadline:
            names = ", ".join(str(pod["metadata"]["name"]) for pod in pods[:5])
            raise LauncherError(
                f"pods of {run} are still there after {time.monotonic() - began:.0f} s: {names}",
                "their node may be lost: kubectl get nodes; docs/kubernetes.md, A node lost, says how to give them up",
            )
        time.sleep(_POLL_INTERVAL)
    return lost


def _grace_period(pod: object_fields.Object) -> float:
    """Return a pod's grace period: that of its deletion, which `down --now` shortens, else that of its spec."""
    return float(pod["metadata"].get("deletionGracePeriodSeconds", pod["spec"].get("terminationGracePeriodSeconds")) or 0)


def delete_claim(cluster: Cluster, run: str) -> None:
    """Delete the run's own claim, and wait until it is gone. Raises LauncherError if it remains."""
    cluster.delete("PersistentVolumeClaim", run)
    _await_claim_deleted(cluster, run, lambda: helper_pod.delete_finished(cluster, run))


def _await_claim_deleted(cluster: Cluster, claim: str, on_poll: Callable[[], object]) -> None:
    """Wait until a deleted claim is gone, calling `on_poll`. Raises LauncherError if it remains."""
    deadline = time.monotonic() + _DELETE_TIMEOUT
    while cluster.get("PersistentVolumeClaim", claim) is not None:
        on_poll()
        if time.monotonic() > deadline:
            raise LauncherError(
                f"the PersistentVolumeClaim {claim} is still there {_DELETE_TIMEOUT:.0f} s after it was deleted",
                f"something uses it: kubectl describe persistentvolumeclaims {claim} -n {cluster.namespace}",
            )
        time.sleep(_POLL_INTERVAL)


def delete_old_jobs(cluster: Cluster, run: str, on_poll: Callable[[], object]) -> None:
    """Delete the Jobs of an earlier start, which cannot be changed, and wait until they and their pods are gone, calling `on_poll`."""
    jobs = [job for job in existing_objects(cluster, run) if job.kind in JOB_KINDS]
    for job in jobs:
        delete(cluster, job)
    if jobs:
        await_pods_deleted(cluster, run, _DELETE_TIMEOUT, on_poll)
    await_jobs_deleted(cluster, run, on_poll)


def await_jobs_deleted(cluster: Cluster, run: str, on_poll: Callable[[], object] | None = None) -> None:
    """Wait until the Jobs of a run, and the Service of its JobSet, are gone: the garbage collector deletes them after the JobSet.

    The next start uses some of their names. Raises LauncherError with those that remain.
    """
    deadline = time.monotonic() + _DELETE_TIMEOUT
    while left := _remaining_jobs(cluster, run):
        if on_poll is not None:
            on_poll()
        if time.monotonic() > deadline:
            raise LauncherError(
                f"{', '.join(left)} of {run} are still there {_DELETE_TIMEOUT:.0f} s after they were deleted",
                f"something keeps them: kubectl get {' '.join(left)} -n {cluster.namespace} -o yaml",
            )
        time.sleep(_POLL_INTERVAL)


def _remaining_jobs(cluster: Cluster, run: str) -> list[str]:
    """Return the Jobs of a run, and the Service of its JobSet, as kubectl names them."""
    found = [f"job/{job['metadata']['name']}" for job in cluster.list_objects("Job", status_reader.labels_of(run))]
    service = cluster.get("Service", run)
    is_jobset_service = service is not None and (pod_status.controller_of([service]) or "").startswith("jobset/")
    return [*found, f"service/{run}"] if is_jobset_service else found
