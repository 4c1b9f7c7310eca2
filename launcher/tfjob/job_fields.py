"""Reads the fields of a TFJob other than its replicas: metadata, policies in both of their places, and status."""

from launcher.render.kubernetes.objects import QUEUE_LABEL
from launcher.spec import names
from launcher.spec.fields import MAX_RESTARTS
from launcher.spec.models import Limits
from launcher.spec.problems import Path, shown
from launcher.spec.quantities import MAX_SECONDS, parse_duration
from launcher.tfjob.builder import SpecBuilder
from launcher.tfjob.field_reader import LeftOut, Table, read_elsewhere, section, walk
from launcher.tfjob.templates import LAST_APPLIED

_SET_BY_CLUSTER = LeftOut("is set by the cluster, and is left out")


def _name(builder: SpecBuilder, path: Path) -> None:
    original = builder.reader.string(path)
    if original is None:
        return
    is_prefix = path[-1] == "generateName"
    if is_prefix and builder.reader.value((*path[:-1], "name")) is not None:
        return  # Kubernetes takes the name
    name = names.as_label(original)[: names.MAX_NAME_LENGTH].rstrip("-")
    builder.set(("name",), name, path)
    if is_prefix:
        message = f"the run is called {name}: a spec has a fixed name, and only one run of a name exists at a time"
        builder.reader.add_remark(path, message, "for several at once: `--set name=...`, or `up --fresh` for one after the other")
    elif name != original:
        message = f"{shown(original)} is not a valid name of a run: it is replaced by {name}"
        builder.reader.add_remark(path, message, f"choose another of at most {names.MAX_NAME_LENGTH} lower-case letters, digits and dashes")


def _namespace(builder: SpecBuilder, path: Path) -> None:
    namespace = builder.reader.string(path)
    if namespace is not None:
        builder.set(("kubernetes", "namespace"), namespace, path)


def _labels(builder: SpecBuilder, path: Path) -> None:
    for key, value in builder.reader.labels(path).items():
        spec_path = ("kubernetes", "queue") if key == QUEUE_LABEL else ("kubernetes", "labels", key)
        builder.set(spec_path, value, (*path, key))


def _annotations(builder: SpecBuilder, path: Path) -> None:
    for key, value in builder.reader.labels(path).items():
        if key == LAST_APPLIED:
            builder.reader.add_remark((*path, key), _SET_BY_CLUSTER.message)
        else:
            builder.set(("kubernetes", "annotations", key), value, (*path, key))


METADATA: Table[SpecBuilder] = {
    "name": _name,
    "generateName": _name,
    "namespace": _namespace,
    "labels": _labels,
    "annotations": _annotations,
    "finalizers": LeftOut("belongs to the TFJob as an object, and is left out"),
    "ownerReferences": LeftOut("belongs to the TFJob as an object, and is left out", "let its owner start the run by `launcher up`"),
    **dict.fromkeys(("uid", "resourceVersion", "generation", "selfLink", "clusterName", "managedFields"), _SET_BY_CLUSTER),
    **dict.fromkeys(("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"), _SET_BY_CLUSTER),
}


def _clean_pod_policy(builder: SpecBuilder, path: Path) -> None:
    policy = builder.reader.string(path)
    outcomes = {
        "All": "at the end all tasks end; finished Jobs and pods stay, so that their logs can be read",
        "Running": "at the end the tasks that still run end, as here; finished Jobs and pods stay",
        "None": "at the end the tasks that still run are ended; TFJob left them running",
        "": "at the end the tasks that still run are ended",
        "Undefined": "at the end the tasks that still run are ended",
    }
    if policy is None:
        return
    if policy not in outcomes:
        builder.reader.add_problem(path, f"{shown(policy)} is not a cleanPodPolicy", "All, Running or None", "write one of them")
        return
    remedy = "`launcher down NAME` removes them; `kubernetes.ttl` does after a time" if policy in {"All", "Running"} else ""
    builder.reader.add_remark(path, outcomes[policy], remedy)


def _ttl(builder: SpecBuilder, path: Path) -> None:
    seconds = builder.reader.integer(path, 0)
    if seconds is None:
        return
    limited = min(max(seconds, 1), MAX_SECONDS)
    builder.set(("kubernetes", "ttl"), f"{limited}s", path)
    if limited != seconds:
        builder.reader.add_remark(path, f"{seconds} seconds become {limited}: `ttl` is from 1s to 366d here")


def _deadline(builder: SpecBuilder, path: Path) -> None:
    seconds = builder.reader.integer(path, 1)
    if seconds is None:
        return
    limited = min(seconds, MAX_SECONDS)
    builder.set(("limits", "deadline"), f"{limited}s", path)
    if limited != seconds:
        builder.reader.add_remark(
            path, f"{seconds} seconds become {limited}: a spec takes at most 366d", "remove `limits.deadline`, for no limit"
        )
    if limited < parse_duration(Limits().start_timeout):
        builder.set(("limits", "start_timeout"), f"{limited}s", path)


def _backoff_limit(builder: SpecBuilder, path: Path) -> None:
    restarts = builder.reader.integer(path, 0)
    if restarts is None:
        return
    builder.set(("limits", "max_restarts"), min(restarts, MAX_RESTARTS), path)
    message = "`limits.max_restarts` is counted for each task, and begins again after ten minutes of running; TFJob counted the restarts of all tasks"
    builder.reader.add_remark(path, message)


def _suspend(builder: SpecBuilder, path: Path) -> None:
    if builder.reader.boolean(path):
        builder.reader.add_remark(path, "the run starts with `launcher up`, not before", "run that when the TFJob was to be resumed")


def _success_policy(builder: SpecBuilder, path: Path) -> None:
    policy = builder.reader.string(path)
    if policy == "AllWorkers":
        builder.success = "all_workers"
        builder.set(("success",), "all_workers", path)
    elif policy not in {None, "", "Default"}:
        builder.reader.add_problem(
            path, f"{shown(policy)} is not a successPolicy", "AllWorkers, or nothing", "write AllWorkers, or remove it"
        )


def _scheduling_queue(builder: SpecBuilder, path: Path) -> None:
    queue = builder.reader.string(path)
    message = f"the queue {queue} is for the scheduler Volcano, and is left out"
    builder.reader.add_remark(path, message, "with Kueue in the cluster, name its queue in `kubernetes.queue`")


def _scheduling_priority(builder: SpecBuilder, path: Path) -> None:
    name = builder.reader.string(path)
    message = f"{name} was the priority of Volcano's group of pods, and is left out"
    builder.reader.add_remark(path, message, f"`kubernetes: {{priority_class: {name}}}` gives the pods that priority, if the class exists")


_GANG = "the scheduler does not start the pods as a group: left out"
_KUEUE = "with Kueue and JobSet in the cluster: `kubernetes: {queue: ..., gang: jobset}`, which is admitted as a whole"
SCHEDULING: Table[SpecBuilder] = {
    "queue": _scheduling_queue,
    "priorityClass": _scheduling_priority,
    "minAvailable": LeftOut(_GANG, _KUEUE),
    "minResources": LeftOut(_GANG, _KUEUE),
    "scheduleTimeoutSeconds": LeftOut(_GANG, "`limits.start_timeout` says how long tasks wait for their peers"),
}

POLICIES: Table[SpecBuilder] = {
    "cleanPodPolicy": _clean_pod_policy,
    "ttlSecondsAfterFinished": _ttl,
    "ttlSecondsAfterFinishing": _ttl,  # v1beta1
    "activeDeadlineSeconds": _deadline,
    "backoffLimit": _backoff_limit,
    "schedulingPolicy": section(SCHEDULING),
    "suspend": _suspend,
    "managedBy": LeftOut("says which controller runs the TFJob; none is needed now, and it is left out"),
}


def _run_policy(builder: SpecBuilder, path: Path) -> None:
    for key in builder.reader.mapping(path):
        if key in POLICIES and builder.reader.value((*path[:-1], key)) is not None:
            message = f"`{key}` is set here and in `spec`, its older place"
            builder.reader.add_problem((*path, key), message, "one of the two", "remove the wrong one")
    walk(path, POLICIES, builder)


def _dynamic_workers(builder: SpecBuilder, path: Path) -> None:
    if builder.reader.boolean(path):
        message = "the number of workers is fixed while a run lasts, and every task knows all others: left out"
        builder.reader.add_remark(path, message, "stop the run, change `roles.worker.replicas`, and start it again")


SPEC: Table[SpecBuilder] = {
    **POLICIES,
    "runPolicy": _run_policy,
    "successPolicy": _success_policy,
    "enableDynamicWorker": _dynamic_workers,
    "tfReplicaSpecs": read_elsewhere,  # launcher.tfjob.replica_specs has its tables
}


JOB: Table[SpecBuilder] = {
    "apiVersion": read_elsewhere,
    "kind": read_elsewhere,
    "metadata": section(METADATA),
    "spec": section(SPEC),
    "status": LeftOut("is the status of the TFJob, and is left out"),
}


def read(builder: SpecBuilder) -> None:
    """Carry over the fields other than the replicas."""
    walk((), JOB, builder)
    if not any(builder.reader.has(("metadata", key)) for key in ("name", "generateName")):
        builder.reader.add_problem(("metadata",), "the TFJob has no name", "metadata.name", "add one, such as `name: my-job`")
