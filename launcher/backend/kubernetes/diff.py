"""Changes that `up` would make to a run's objects, deletions included, in the format of `kubectl diff`."""

import difflib
from collections.abc import Iterator
from typing import Any

from launcher.backend.kubernetes import run_objects
from launcher.backend.kubernetes.client import Cluster, Object
from launcher.render.kubernetes.objects import Run
from launcher.render.yaml_text import text

# Fields that the cluster adds to every object, labels that it adds to Jobs, and its annotation of Deployments.
_METADATA = ("managedFields", "resourceVersion", "uid", "generation", "creationTimestamp", "ownerReferences", "selfLink", "generateName")
_JOB_LABELS = ("controller-uid", "batch.kubernetes.io/controller-uid", "job-name", "batch.kubernetes.io/job-name")
_REVISION = "deployment.kubernetes.io/revision"


def differences(cluster: Cluster, run: Run) -> Iterator[str]:
    """Yield the lines of a unified diff; none if `up` would change nothing. Changes nothing. Raises LauncherError."""
    manifests = run_objects.objects(run, cluster)
    for manifest in manifests:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        new = run_objects.dry_run(cluster, manifest)
        new["metadata"]["name"] = name
        yield from _lines(cluster, kind, name, cluster.get(kind, name), new)
    used = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests}
    for unused in run_objects.existing_objects(cluster, run.name):
        if (unused.kind, unused.name) not in used:
            yield from _lines(cluster, unused.kind, unused.name, cluster.get(unused.kind, unused.name), None)


def _lines(cluster: Cluster, kind: str, name: str, old: Object | None, new: Object | None) -> Iterator[str]:
    """Yield the diff of one object; `old` or `new` is None if it does not exist."""
    before, after = ([] if version is None else text(_plain(version), {}).splitlines() for version in (old, new))
    deleted = "" if new else ", which deletes it"
    yield from difflib.unified_diff(before, after, f"{kind}/{name} in {cluster.namespace}", f"{kind}/{name} after up{deleted}", lineterm="")


def _plain(full: Object) -> Object:
    """Return an object without the fields that the cluster adds."""
    plain: dict[str, Any] = {key: value for key, value in full.items() if key != "status"}
    plain["metadata"] = _without(plain["metadata"], _METADATA)
    if annotations := _without(plain["metadata"].get("annotations") or {}, (_REVISION,)):
        plain["metadata"]["annotations"] = annotations
    else:
        plain["metadata"].pop("annotations", None)
    if plain["kind"] == "JobSet":
        plain["spec"] = _without(plain["spec"], ("suspend",))
    if plain["kind"] == "Job":
        template = plain["spec"]["template"]
        metadata = {**template["metadata"], "labels": _without(template["metadata"].get("labels") or {}, _JOB_LABELS)}
        metadata.pop("creationTimestamp", None)
        plain["metadata"]["labels"] = _without(plain["metadata"].get("labels") or {}, _JOB_LABELS)
        plain["spec"] = {**_without(plain["spec"], ("selector", "suspend")), "template": {**template, "metadata": metadata}}
    return {key: plain[key] for key in ("apiVersion", "kind", "metadata", *sorted(set(plain) - {"apiVersion", "kind", "metadata"}))}


def _without(mapping: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if key not in keys}
