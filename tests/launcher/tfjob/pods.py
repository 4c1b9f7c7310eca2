"""Compares the pods of an imported spec with those of the TFJob, by Kubernetes' own rules for defaults and expansion."""

import json
import posixpath
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from launcher.images import spec_image
from launcher.plan import planner
from launcher.plan.target_rules import TARGET_RULES
from launcher.render.kubernetes.manifests import objects
from launcher.render.kubernetes.objects import Run
from launcher.spec.models import ClusterSpec

Pod = dict[str, Any]
PARENT = ["python3", "-I", "-S", "/tf-launcher/parent.py", "--"]
OURS = {"/tf-launcher", "/dev/shm"}
GPU_TAINT = "nvidia.com/gpu"  # tolerated by every task with GPUs
UNITS: dict[str, Decimal | int] = {"m": Decimal("0.001"), "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def rendered(spec: ClusterSpec) -> dict[str, dict[str, Any]]:
    """Return the Job of each role."""
    plan = planner.plan(spec, "kubernetes", run_dir=TARGET_RULES["kubernetes"].run_dir(Path(), spec.name))
    manifests = objects(Run(spec, plan, spec_image(spec)))
    return {one["metadata"]["labels"]["app.kubernetes.io/component"]: one["spec"] for one in manifests if one["kind"] == "Job"}


def tfjob(data: bytes) -> dict[str, Any]:
    """Return the only TFJob of a file. Kubernetes and PyYAML read octal numbers alike."""
    documents = [document for document in yaml.load_all(data, Loader=yaml.CSafeLoader) if document]
    items = [item for document in documents for item in document.get("items", [document])]
    [job] = [one for one in items if one["kind"] == "TFJob"]
    whole: dict[str, Any] = job
    return whole


def check(data: bytes, spec: ClusterSpec) -> None:
    """Compare each task's pod in the manifests of the spec with the TFJob's."""
    replicas = {kind: with_new_name(one) for kind, one in tfjob(data)["spec"]["tfReplicaSpecs"].items() if one.get("replicas", 1)}
    jobs = rendered(spec)
    single = sum(one.get("replicas", 1) for one in replicas.values()) == 1
    assert len(replicas) == len(jobs)
    for kind, replica in replicas.items():
        role = "chief" if single or kind.lower() == "master" else kind.lower()
        assert jobs[role]["completions"] == replica.get("replicas", 1)
        was, now = replica["template"]["spec"], jobs[role]["template"]["spec"]
        mains = [one for one in was["containers"] if one["name"] == "tensorflow"]
        check_main(was, mains[0], now, now["containers"][0], single=single)
        assert now["containers"][0]["name"] == "trainer"
        assert len(now["containers"]) == 1
        init_containers = was.get("initContainers", [])
        sidecars = [one for one in init_containers if one.get("restartPolicy") == "Always"]
        sidecars += [one for one in was["containers"] if one["name"] != "tensorflow"]
        extra = now.get("initContainers", [])
        check_extra(was, [*(one for one in init_containers if one.get("restartPolicy") != "Always"), *sidecars], now, extra)
        assert [one["name"] for one in extra if one.get("restartPolicy") == "Always"] == [one["name"] for one in sidecars]
        check_pod(replica["template"], jobs[role]["template"])
        has_tf_config = any(one["name"] == "TF_CONFIG" for one in now["containers"][0]["env"])
        assert has_tf_config is not single


def with_new_name(replica: Pod) -> Pod:
    """Return a replica spec whose references to the task's container have its new name; the container keeps its old one."""
    reference = (
        r'("containerName": |"kubectl.kubernetes.io/default-container": |"container.apparmor.security.beta.kubernetes.io/)("?)tensorflow"'
    )
    whole: Pod = json.loads(re.sub(reference, r'\1\2trainer"', json.dumps(replica)))
    return whole


def check_main(was_pod: Pod, was: Pod, now_pod: Pod, now: Pod, *, single: bool) -> None:
    """Compare the task's container."""
    assert now["image"] == was["image"]
    before = environment(was) | ({} if single else {"TF_CONFIG": "<TF_CONFIG>"})
    after = environment(now)
    command = now.get("command", [])
    if command[: len(PARENT)] == PARENT:
        command = command[len(PARENT) :]
    assert ("command" in now) is bool(was.get("command"))
    arguments = [*was.get("command", []), *was.get("args", [])]
    assert expanded([*command, *now.get("args", [])], after) == expanded(arguments, before)
    before.pop("TF_CONFIG", None)
    assert {name: after.get(name) for name in before} == before
    assert now.get("envFrom", []) == was.get("envFrom", [])
    assert amounts(now) == amounts(was)
    mounts_before, mounts_after = mounts(was_pod, was), mounts(now_pod, now)
    assert {path: mounts_after.get(path) for path in mounts_before} == mounts_before
    assert set(mounts_after) - set(mounts_before) <= OURS
    for key in ("workingDir", "imagePullPolicy", "lifecycle", "livenessProbe", "stdin", "terminationMessagePath"):
        assert now.get(key) == was.get(key), key
    assert (was.get("securityContext") or {}).items() <= now["securityContext"].items()
    ports = {port["containerPort"] for port in was.get("ports", []) if port.get("name") != "tfjob-port"}
    assert ports <= {port["containerPort"] for port in now.get("ports", [])}


def check_extra(was_pod: Pod, was: list[Pod], now_pod: Pod, now: list[Pod]) -> None:
    """Compare init containers and sidecars. The launcher renders both as init containers."""
    for before, after in zip(was, now, strict=True):
        expected, actual = environment(before), environment(after)
        assert actual == expected
        for key in ("command", "args"):
            assert expanded(after.get(key, []), actual) == expanded(before.get(key, []), expected), key
        assert amounts(after) == amounts(before)
        assert mounts(was_pod, before) == mounts(now_pod, after)
        assert (before.get("securityContext") or {}).items() <= after["securityContext"].items()
        compared = {"command", "args", "env", "resources", "volumeMounts", "securityContext", "terminationMessagePolicy", "restartPolicy"}
        assert {key: value for key, value in after.items() if key not in compared} == {
            key: value for key, value in before.items() if key not in compared
        }
        if "terminationMessagePolicy" in before:
            assert after["terminationMessagePolicy"] == before["terminationMessagePolicy"]


def check_pod(was: Pod, now: Pod) -> None:
    """Compare the template except for its containers."""
    skipped = {"containers", "initContainers", "volumes", "restartPolicy", "hostname", "priority", "serviceAccount", "securityContext"}
    for key, value in was["spec"].items():
        if key == "tolerations":
            assert [one for one in now["spec"][key] if one["key"] != GPU_TAINT] == value
        elif key not in skipped:
            assert now["spec"].get(key) == value, key
    account = was["spec"].get("serviceAccountName") or was["spec"].get("serviceAccount")
    assert now["spec"].get("serviceAccountName") == account
    assert now["spec"]["automountServiceAccountToken"] is was["spec"].get("automountServiceAccountToken", account is not None)
    security = {key: value for key, value in now["spec"]["securityContext"].items() if key != "seccompProfile"}
    assert security == was["spec"].get("securityContext", {})
    for kind in ("labels", "annotations"):
        imported = {key: value for key, value in was.get("metadata", {}).get(kind, {}).items() if not key.startswith("app.kubernetes.io/")}
        assert imported.items() <= (now["metadata"].get(kind) or {}).items()


def environment(container: Pod) -> dict[str, str]:
    """Return the variables that the kubelet sets from `env`. For a value that it looks up the result has the `valueFrom`."""
    values: dict[str, str] = {}
    for entry in container.get("env", []):
        if entry["name"] == "TF_CONFIG":
            values["TF_CONFIG"] = "<TF_CONFIG>"
        elif "valueFrom" in entry:
            assert not entry.get("value")
            source = json.dumps(entry["valueFrom"], sort_keys=True).replace(', "optional": false', "")  # the default
            values[entry["name"]] = f"<{source}>"
        else:
            values[entry["name"]] = expanded([entry.get("value") or ""], values)[0]
    return values


def expanded(texts: list[str], values: dict[str, str]) -> list[str]:
    """Return texts with $(NAME) replaced as Kubernetes does it."""
    return [_expanded(text, values) for text in texts]


def _expanded(text: str, values: dict[str, str]) -> str:
    result, at = "", 0
    while at < len(text):
        if text.startswith("$$", at):
            result, at = result + "$", at + 2
        elif text.startswith("$(", at) and ")" in text[at:]:
            end = text.index(")", at)
            result, at = result + values.get(text[at + 2 : end], text[at : end + 1]), end + 1
        else:
            result, at = result + text[at], at + 1
    return result


def amounts(container: Pod) -> dict[str, dict[str, Decimal]]:
    """Return requests and limits as numbers. The default of a request is the limit."""
    resources = container.get("resources", {})
    limits = {key: amount(value) for key, value in resources.get("limits", {}).items()}
    requests = {key: amount(value) for key, value in resources.get("requests", {}).items()}
    return {"limits": limits, "requests": {**limits, **requests}}


def amount(value: object) -> Decimal:
    """Return a quantity as a number."""
    match = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(value))
    assert match
    return Decimal(match[1]) * UNITS.get(match[2], 1)


def mounts(pod: Pod, container: Pod) -> dict[str, tuple[Any, Any]]:
    """Return the mounts of a container: path -> the volume's source, and the mount's other fields."""
    sources = {volume["name"]: {key: value for key, value in volume.items() if key != "name"} for volume in pod.get("volumes", [])}
    mounted: dict[str, tuple[Any, Any]] = {}
    for mount in container.get("volumeMounts", []):
        fields = {key: value for key, value in mount.items() if key not in {"name", "mountPath"} and value is not False}
        mounted[posixpath.normpath(mount["mountPath"])] = sources[mount["name"]], fields
    return mounted
