"""Diagnoses of pods that do not run, from messages as Kubernetes 1.34 words them."""

from typing import Any

import pytest

from launcher import images
from launcher.backend.kubernetes import diagnosis
from launcher.cli import task_rows
from launcher.cli.prefixes import Prefixes
from launcher.runs.status import State, TaskStatus
from tests.golden_messages import Golden


def pending(message: str, reason: str = "Unschedulable") -> dict[str, Any]:
    return {
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": reason, "message": message}]}
    }


def container(**state: Any) -> dict[str, Any]:
    phase = "Failed" if "terminated" in state else "Pending"
    return {"status": {"phase": phase, "containerStatuses": [{"name": "trainer", "image": "team/x:1", "state": state}]}}


PREEMPTION = " preemption: 0/6 nodes are available: 6 No preemption victims found for incoming pod."
PODS = {
    "no GPU is free": pending(f"0/6 nodes are available: 6 Insufficient nvidia.com/gpu.{PREEMPTION}"),
    "no node matches": pending(
        f"0/6 nodes are available: 2 node(s) didn't match Pod's node affinity/selector, 4 Insufficient cpu.{PREEMPTION}"
    ),
    "a missing claim": pending('0/2 nodes are available: persistentvolumeclaim "models" not found. preemption: not found'),
    "a claim is not bound": pending("0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"),
    "gated": pending("Scheduling is blocked due to non-empty scheduling gates", "SchedulingGated"),
    "an image cannot be pulled": container(waiting={"reason": "ImagePullBackOff", "message": 'Back-off pulling image "team/x:1"'}),
    "a missing secret": container(waiting={"reason": "CreateContainerConfigError", "message": 'secret "aws" not found'}),
    "no python": container(
        terminated={
            "reason": "StartError",
            "exitCode": 128,
            "message": "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start "
            'container process: exec: "python3": executable file not found in $PATH: unknown',
        }
    ),
    "out of memory": container(terminated={"reason": "OOMKilled", "exitCode": 137}),
    "wrong settings": container(terminated={"reason": "Error", "exitCode": 2, "message": "starting\ntrain.steps is 0\n"}),
    "killed": container(
        terminated={
            "reason": "Error",
            "exitCode": 1,
            "message": 'Traceback\n{"event": "failed", "cause": "killed by SIGKILL", "detail": "no memory"}\n',
        }
    ),
    "killed, without detail": container(
        terminated={
            "reason": "Error",
            "exitCode": 1,
            "message": '{"event": "failed", "cause": "killed, exit code 137", "detail": "", "process_exit_code": 137}\n',
        }
    ),
    "a traceback before the event": container(
        terminated={
            "reason": "Error",
            "exitCode": 1,
            "message": 'Traceback (most recent call last):\n  File "a.py", line 1\n    ^^^^\nEmpty: nothing there\n'
            '{"event": "failed", "cause": "the limit is reached", "detail": "", "process_exit_code": 1}\n',
        }
    ),
    "evicted by its node": {"status": {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}},
    "evicted for its own excess": {
        "status": {"phase": "Failed", "reason": "Evicted", "message": 'Usage of EmptyDir volume "cache" exceeds the limit "1Mi". '}
    },
    "disrupted": {
        "status": {
            "phase": "Failed",
            "conditions": [
                {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
            ],
        }
    },
    "its node is lost": {
        "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": "node-2"},
        "status": {
            "phase": "Running",
            "conditions": [
                {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"},
                {"type": "Ready", "status": "False"},
                {"type": "ContainersReady", "status": "True"},
            ],
        },
    },
}
# Its node was tainted, and still answers.
MOVED_OFF = {
    "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
    "status": {
        "phase": "Running",
        "conditions": [
            {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"},
            {"type": "Ready", "status": "True"},
            {"type": "ContainersReady", "status": "True"},
        ],
    },
}


@pytest.mark.parametrize("case", PODS)
def test_a_pod_that_does_not_run_has_a_diagnosis_and_a_remedy(case: str, golden: Golden) -> None:
    result = diagnosis.diagnose_pod(PODS[case])
    assert result is not None
    golden(result.message, result.remedy)
    assert result.remedy


@pytest.mark.parametrize(
    "pod",
    [
        container(running={"startedAt": "2026-01-01T00:00:00Z"}),
        container(waiting={"reason": "ContainerCreating"}),
        {"status": {"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}]}},
        {"metadata": {}, "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}},
        {"status": {"phase": "Pending"}},
        MOVED_OFF,
    ],
    ids=["running", "creating", "succeeded", "ready", "new", "moved off"],
)
def test_a_healthy_pod_has_no_diagnosis(pod: dict[str, Any]) -> None:
    assert diagnosis.diagnose_pod(pod) is None


# As containerd words it, before the cause.
PULL = 'failed to pull and unpack image "registry.example/team/x:1": failed to resolve reference "registry.example/team/x:1": '
REQUEST = 'failed to do request: Head "https://registry.example/v2/team/x/manifests/1": '


@pytest.mark.parametrize(
    "cause, remedy",
    [
        (f"{REQUEST}dial tcp: lookup registry.example on 10.96.0.10:53: no such host", "see that node-2 reaches the registry"),
        (f"{REQUEST}tls: failed to verify certificate: x509: certificate signed by unknown authority", "have node-2 trust the certificate"),
        ("unexpected status from HEAD request to https://registry.example/v2/: 401 Unauthorized", "kubernetes.image_pull_secrets"),
        ("write /var/lib/containerd/ingest/data: no space left on device", "free some of the disk of node-2"),
        ('failed to resolve reference "localhost/team/x:1": dial tcp 127.0.0.1:80: connect: connection refused', "load it on node-2"),
        ("registry.example/team/x:1: not found", "check the image's name"),
    ],
)
def test_a_failed_pull_of_an_image_is_reported_with_its_node_and_its_cause(cause: str, remedy: str) -> None:
    pod = container(waiting={"reason": "ErrImagePull", "message": PULL + cause}) | {"spec": {"nodeName": "node-2"}}
    result = diagnosis.diagnose_pod(pod)
    assert result is not None
    assert result.message == f"ErrImagePull on node-2: {PULL}{cause}"
    assert remedy in result.remedy
    shown = task_rows.row(TaskStatus("chief", State.PENDING, result.message), Prefixes(["chief"]), marked=False)[-1][0]
    assert len(shown) <= 300
    assert shown.startswith("ErrImagePull on node-2: failed to pull")
    assert shown.endswith(cause[-100:])


def test_a_secret_that_the_registry_does_not_accept_is_named() -> None:
    waiting = {
        "reason": "ErrImagePull",
        "message": f"{PULL}pulling from host registry.example failed with status code [manifests 1]: 401 Unauthorized",
    }
    result = diagnosis.diagnose_pod(container(waiting=waiting) | {"spec": {"imagePullSecrets": [{"name": "team"}]}})
    assert result is not None
    assert result.remedy.startswith("see that the Secret team is in the run's namespace and has the credentials of this registry")


FORBIDDEN = 'Error creating: pods "a-chief-0-x" is forbidden: '
EVENTS = {
    "a quota": ("quota", "exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=4, limited: 4"),
    "Pod Security": ("admission", 'violates PodSecurity "restricted:latest": host namespaces (hostNetwork=true)'),
    "a mount": ("storage", 'MountVolume.SetUp failed for volume "pvc-1" : mount failed: exit status 32: access denied by server'),
    "no priority class": ("admission", "no PriorityClass with name high was found"),
    "no runtime class": ("admission", 'pod rejected: RuntimeClass "nvidia" not found'),
    "no storage class": ("storage", 'storageclass.storage.k8s.io "fast" not found'),
    "no ConfigMap": ("config", 'MountVolume.SetUp failed for volume "code" : configmap "digits-code" not found'),
    "attached elsewhere": ("storage", 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) a'),
    "a quota of limits": ("quota", "failed quota: all: must specify limits.cpu for: trainer; limits.memory for: trainer"),
}
OF_PODS = {"a quota", "Pod Security", "no priority class", "no runtime class", "a quota of limits"}


@pytest.mark.parametrize("warning", EVENTS)
def test_warnings_are_recognised(warning: str, golden: Golden) -> None:
    kind, message = EVENTS[warning]
    message = FORBIDDEN * (warning in OF_PODS) + message
    result = diagnosis.diagnose_events(
        [{"type": "Warning", "reason": "FailedCreate", "message": message}, {"type": "Normal", "message": "fine"}]
    )
    assert result is not None
    assert result.kind == kind
    golden(result.message, result.remedy)
    assert result.remedy


def test_a_warning_remains_if_only_another_volume_was_attached_since() -> None:
    at = "2026-01-01T00:00:0{}Z".format
    failed = {"type": "Warning", "reason": "FailedAttachVolume", "message": EVENTS["attached elsewhere"][1], "lastTimestamp": at(0)}
    other = {"type": "Normal", "reason": "SuccessfulAttachVolume", "message": 'AttachVolume.Attach succeeded for volume "pvc-2"'}
    other["lastTimestamp"] = at(1)
    assert diagnosis.diagnose_events([failed, other]) is not None
    assert diagnosis.diagnose_events([failed, other | {"message": 'AttachVolume.Attach succeeded for volume "pvc-1"'}]) is None


def test_the_newest_warning_is_reported_and_an_unknown_one_is_quoted(golden: Golden) -> None:
    old = {"type": "Warning", "reason": "FailedMount", "message": 'secret "a" not found', "lastTimestamp": "2026-01-01T00:00:00Z"}
    new = {"type": "Warning", "reason": "FailedMount", "message": 'secret "b" not found', "lastTimestamp": "2026-01-01T00:01:00Z"}
    result = diagnosis.diagnose_events([new, old])
    assert result is not None
    golden(result.message)
    other = diagnosis.diagnose_events([{"type": "Warning", "reason": "FailedCreate", "message": "something  of\ntomorrow"}])
    assert other is not None
    assert other.message == "FailedCreate: something of tomorrow"
    assert diagnosis.diagnose_events([]) is None


def test_a_claim_without_a_volume(golden: Golden) -> None:
    claim = {
        "metadata": {"name": "digits"},
        "spec": {"storageClassName": "slow", "accessModes": ["ReadWriteMany"]},
        "status": {"phase": "Pending"},
    }
    result = diagnosis.diagnose_claim(claim)
    assert result is not None
    golden(result.message)
    waiting = [{"type": "Normal", "reason": "WaitForFirstConsumer", "message": "waiting for first consumer"}]
    assert diagnosis.diagnose_claim(claim, waiting) is None
    assert diagnosis.diagnose_claim(claim | {"status": {"phase": "Bound"}}) is None
    assert "storage.mount to one" in result.remedy


@pytest.mark.parametrize(
    "message",
    [
        "rpc error: code = InvalidArgument desc = Volume capabilities MULTI_NODE_MULTI_WRITER not supported. Only AccessModes[ReadWriteOnce] supported.",
        "rpc error: code = InvalidArgument desc = VolumeCapabilities is invalid: specified multi writer with mount access type",
        "NodePath only supports ReadWriteOnce and ReadWriteOncePod (1.22+) access modes",
        "multi node access modes are only supported on rbd `block` type volumes",
        "invalid AccessModes [ReadWriteMany]: only AccessModes [ReadWriteOnce] are supported",
        "storage class slow serves one node: access mode ReadWriteMany is not supported",
    ],
)
def test_a_class_without_volumes_for_many_nodes_is_named_with_both_remedies(message: str, golden: Golden) -> None:
    claim = {"metadata": {"name": "digits"}, "spec": {"storageClassName": "slow", "accessModes": ["ReadWriteMany"]}, "status": {}}
    warning = {
        "type": "Warning",
        "reason": "ProvisioningFailed",
        "message": f'failed to provision volume with StorageClass "slow": {message}',
    }
    result = diagnosis.diagnose_claim(claim, [warning])
    assert result is not None
    golden(result.message)
    assert "storage.mount to one" in result.remedy
    assert "a class that offers ReadWriteMany" in result.remedy


@pytest.mark.parametrize(
    "image, hardened, named", [("team/x:1", True, True), ("team/x:1", False, False), (images.DEFAULT_IMAGE, True, False)]
)
def test_the_remedy_for_missing_rights_in_an_image_of_one_s_own_names_the_security_field(
    image: str, *, hardened: bool, named: bool
) -> None:
    pod = container(terminated={"reason": "Error", "exitCode": 1, "message": "OSError: [Errno 30] Read-only file system: '/srv/x'\n"})
    pod["spec"] = {"containers": [{"name": "trainer", "image": image, "securityContext": {"readOnlyRootFilesystem": hardened}}]}
    result = diagnosis.diagnose_pod(pod)
    assert result is not None
    assert ("`security: image`" in result.remedy) is named


def test_the_remedy_for_an_image_that_runs_as_root_names_the_security_field() -> None:
    message = 'container has runAsNonRoot and image will run as root (pod: "a", container: trainer)'
    result = diagnosis.diagnose_pod(container(waiting={"reason": "CreateContainerConfigError", "message": message}))
    assert result is not None
    assert result.message.startswith("CreateContainerConfigError: container has runAsNonRoot")
    assert "`security: image`" in result.remedy


def test_an_init_container_that_failed_is_named_and_a_sidecar_that_was_ended_after_its_task_is_not(golden: Golden) -> None:
    ended = {"reason": "Error", "exitCode": 2, "message": "no such host"}
    init_containers = [{"name": "fetch", "image": "curl:1", "state": {"terminated": ended}}]
    containers = [{"name": "trainer", "image": "team/x:1", "state": {"waiting": {"reason": "PodInitializing"}}}]
    status: dict[str, Any] = {"phase": "Failed", "initContainerStatuses": init_containers, "containerStatuses": containers}
    result = diagnosis.diagnose_pod({"metadata": {"name": "digits-chief-0", "namespace": "team"}, "status": status})
    assert result is not None
    golden(result.message)
    golden(result.remedy)
    result = diagnosis.diagnose_pod({"spec": {"initContainers": [{"name": "fetch", "restartPolicy": "Always"}]}, "status": status})
    assert result is not None
    golden(result.message)
    containers[0]["state"] = {"terminated": {"reason": "Error", "exitCode": 1, "message": "ValueError: x"}}
    result = diagnosis.diagnose_pod({"status": status})
    assert result is not None
    golden(result.message)


@pytest.mark.parametrize(
    "name, is_own",
    [("digits-cluster", True), ("digits-cluster-0a1b2c3d", True), ("digits-code-0a1b", True), ("digits-settings", False), ("team", False)],
)
def test_the_user_is_not_asked_to_create_a_missing_configmap_of_the_run_itself(name: str, *, is_own: bool) -> None:
    pod = container(waiting={"reason": "CreateContainerConfigError", "message": f'configmap "{name}" not found'})
    result = diagnosis.diagnose_pod(pod | {"metadata": {"labels": {"app.kubernetes.io/instance": "digits"}}})
    assert result is not None
    assert ("launcher down digits" in result.remedy) is is_own
    assert ("kubernetes.env_from" in result.remedy) is not is_own


@pytest.mark.parametrize("path, is_volume", [("/runs/digits/checkpoints", True), ("/srv/runs", False)])
def test_the_remedy_for_missing_rights_on_the_volume_names_the_user_field(path: str, *, is_volume: bool) -> None:
    result = diagnosis.diagnose_pod(
        container(terminated={"reason": "Error", "exitCode": 1, "message": f"PermissionError: [Errno 13] Permission denied: '{path}'\n"})
    )
    assert result is not None
    assert ("kubernetes.user" in result.remedy) is is_volume
