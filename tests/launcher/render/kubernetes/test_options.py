"""The options of the `kubernetes` section, as the pods have them."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import UsageError
from tests.launcher.render.kubernetes.conftest import CLUSTER, TRAIN, Rendered, container, pod, pods

WORKERS = "strategy: multi_worker_mirrored\nroles: {worker: {replicas: 3}}\n" + TRAIN


def test_resources_are_both_requests_and_limits(rendered: Rendered) -> None:
    objects = rendered("roles: {chief: {cpu: 0.5, memory: 1.5Gi, gpus: 2, gpu_type: NVIDIA-H100-80GB-HBM3}}\n" + TRAIN)
    assert container(objects, "chief")["resources"] == {
        "requests": {"cpu": "500m", "memory": "1.5Gi"},
        "limits": {"cpu": "500m", "memory": "1.5Gi", "nvidia.com/gpu": "2"},
    }
    spec = pod(objects, "chief")["spec"]
    assert spec["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert "resources" not in container(rendered(), "ps")
    assert "tolerations" not in pod(rendered(), "ps")["spec"]


def test_the_resource_and_the_label_of_gpus_can_be_set(rendered: Rendered) -> None:
    options = "kubernetes: {gpu_resource: amd.com/gpu, gpu_type_label: cloud.google.com/gke-accelerator}\n"
    objects = rendered("roles: {chief: {gpus: 1, gpu_type: mi300}}\n" + TRAIN + options)
    assert container(objects, "chief")["resources"] == {"limits": {"amd.com/gpu": "1"}}
    assert pod(objects, "chief")["spec"]["nodeSelector"] == {"cloud.google.com/gke-accelerator": "mi300"}
    assert pod(objects, "chief")["spec"]["tolerations"][0]["key"] == "amd.com/gpu"


def test_scheduling_options_are_on_every_pod(rendered: Rendered) -> None:
    options = """\
kubernetes:
  priority_class: high
  node_selector: {pool: train}
  tolerations: [{key: dedicated, value: ml, effect: NoSchedule}]
  image_pull_policy: Never
  image_pull_secrets: [registry]
  labels: {team: vision}
  annotations: {example.com/owner: me}
"""
    objects = rendered(CLUSTER + options)
    for template in pods(objects):
        spec = template["spec"]
        assert spec["priorityClassName"] == "high"
        assert spec["nodeSelector"] == {"pool": "train"}
        assert spec["tolerations"] == [{"key": "dedicated", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}]
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
        assert {one["imagePullPolicy"] for one in spec["containers"]} == {"Never"}
        assert template["metadata"]["labels"]["team"] == "vision"
        assert template["metadata"]["annotations"] == {"example.com/owner": "me"}
    for one in objects.values():
        assert one["metadata"]["labels"]["team"] == "vision"
        assert one["metadata"]["labels"]["app.kubernetes.io/instance"] == "digits"
        assert one["metadata"]["annotations"]["example.com/owner"] == "me"


def test_workers_are_spread_or_packed(rendered: Rendered) -> None:
    spread = pod(rendered(WORKERS + "kubernetes: {placement: spread}\n"), "worker")
    (constraint,) = spread["spec"]["topologySpreadConstraints"]
    assert (constraint["topologyKey"], constraint["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
    assert constraint["labelSelector"]["matchLabels"].items() <= spread["metadata"]["labels"].items()
    packed = pod(rendered(WORKERS + "kubernetes: {placement: pack, placement_key: topology.kubernetes.io/zone}\n"), "worker")
    (term,) = packed["spec"]["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["topologyKey"] == "topology.kubernetes.io/zone"
    assert term["podAffinityTerm"]["labelSelector"]["matchLabels"].items() <= packed["metadata"]["labels"].items()
    assert "affinity" not in pod(rendered(WORKERS), "worker")["spec"]


def test_shared_memory_runtime_class_and_grace_period(rendered: Rendered) -> None:
    roles = "strategy: parameter_server\nroles: {chief: {}, ps: {}, worker: {gpus: 1}}\n"
    objects = rendered(roles + TRAIN + "limits: {grace_period: 90s}\nkubernetes: {shm_size: 8Gi, runtime_class: nvidia}\n")
    spec = pod(objects, "worker")["spec"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}} in spec["volumes"]
    assert spec["terminationGracePeriodSeconds"] == 90
    assert spec["runtimeClassName"] == "nvidia"
    assert "runtimeClassName" not in pod(objects, "ps")["spec"]


def test_environment_from_secrets_and_configmaps(rendered: Rendered) -> None:
    options = """\
kubernetes:
  env_from:
    - {secret: aws, optional: true}
    - {config_map: settings, prefix: S3_}
    - {secret: tokens, key: hub, name: HUB_TOKEN}
"""
    worker = container(rendered("env: {HUB_TOKEN: none}\n" + CLUSTER + options), "worker")
    assert worker["envFrom"] == [{"secretRef": {"name": "aws", "optional": True}}, {"prefix": "S3_", "configMapRef": {"name": "settings"}}]
    tokens = [entry for entry in worker["env"] if entry["name"] == "HUB_TOKEN"]
    assert tokens == [{"name": "HUB_TOKEN", "valueFrom": {"secretKeyRef": {"name": "tokens", "key": "hub"}}}]


def test_a_variable_s_value_may_be_a_secret_s(rendered: Rendered) -> None:
    roles = "strategy: multi_worker_mirrored\nroles: {chief: {}, worker: {env: {TOKEN: {secret: team, key: token}}}}\n"
    objects = rendered(roles + "env: {TOKEN: none}\ncommand: [python, train.py]\n")
    variables = {
        role: [variable for variable in container(objects, role)["env"] if variable["name"] == "TOKEN"] for role in ("chief", "worker")
    }
    secret = {"secretKeyRef": {"name": "team", "key": "token"}}
    assert variables == {"chief": [{"name": "TOKEN", "value": "none"}], "worker": [{"name": "TOKEN", "valueFrom": secret}]}
    # A variable that the launcher would set, or that is named twice, is set once.
    twice = "command: [a]\nroles: {chief: {cpu: 1}}\nenv: {OMP_NUM_THREADS: {secret: team, key: n}, HUB: {secret: team, key: hub}}\n"
    names = [
        variable["name"]
        for variable in container(rendered(twice + "kubernetes: {env_from: [{secret: t, key: k, name: HUB}]}\n"), "chief")["env"]
    ]
    assert len(names) == len(set(names))
    assert {"OMP_NUM_THREADS", "HUB"} <= set(names)


def test_further_volumes_are_mounted_by_the_roles_that_they_name(rendered: Rendered) -> None:
    options = """\
kubernetes:
  volumes:
    - {name: sets, mount_path: /sets, source: {persistentVolumeClaim: {claimName: sets}}}
    - {name: keys, mount_path: /keys, sub_path: mine, read_only: false, source: {secret: {secretName: keys}}, roles: [chief]}
"""
    objects = rendered(CLUSTER + options)
    assert {"name": "sets", "mountPath": "/sets", "readOnly": True} in container(objects, "ps")["volumeMounts"]
    assert {"name": "keys", "mountPath": "/keys", "subPath": "mine"} in container(objects, "chief")["volumeMounts"]
    assert {"name": "keys", "secret": {"secretName": "keys"}} in pod(objects, "chief")["spec"]["volumes"]
    assert "keys" not in str(pod(objects, "ps"))


def test_overrides_are_merged_last(rendered: Rendered) -> None:
    options = """\
kubernetes:
  overrides:
    all: {spec: {schedulerName: bin-packer}}
    worker:
      metadata: {annotations: {sidecar.istio.io/inject: "false"}}
      spec:
        hostNetwork: true
        subdomain: null
        containers: [{name: trainer, securityContext: {capabilities: {add: [IPC_LOCK]}}, env: [{name: NCCL_DEBUG, value: INFO}]}]
    tensorboard: {spec: {containers: [{name: tensorboard, resources: {limits: {memory: 8Gi}}}]}}
"""
    objects = rendered(CLUSTER + options)
    worker = pod(objects, "worker")
    assert worker["metadata"]["annotations"] == {"sidecar.istio.io/inject": "false"}
    assert (worker["spec"]["hostNetwork"], worker["spec"]["schedulerName"]) == (True, "bin-packer")
    assert "subdomain" not in worker["spec"]
    trainer = container(objects, "worker")
    assert trainer["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert {"name": "NCCL_DEBUG", "value": "INFO"} in trainer["env"]
    assert any(entry["name"] == "TF_CONFIG" for entry in trainer["env"])
    assert pod(objects, "ps")["spec"]["schedulerName"] == "bin-packer"
    board = objects["Deployment", "digits-tensorboard"]["spec"]["template"]["spec"]
    assert "schedulerName" not in board
    assert board["containers"][0]["resources"] == {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "8Gi"}}


def test_an_override_of_an_unknown_container_is_refused(rendered: Rendered) -> None:
    """An import may write one for a sidecar, which the user later removes from the spec."""
    options = "kubernetes: {overrides: {worker: {spec: {initContainers: [{name: ship, resources: {limits: {cpu: 1}}}]}}}}"
    with pytest.raises(UsageError, match=r"kubernetes\.overrides changes a container that worker does not have: ship"):
        rendered(CLUSTER + options)


def mounting(objects: dict[tuple[str, str], Any]) -> set[str]:
    return {
        name for (kind, name), one in objects.items()
        if kind in {"Job", "Deployment"} and any("persistentVolumeClaim" in v for v in one["spec"]["template"]["spec"]["volumes"])
    }  # fmt: skip


def test_the_volume_is_mounted_by_the_pods_that_need_it(rendered: Rendered) -> None:
    assert mounting(rendered()) == {"digits-chief", "digits-evaluator", "digits-tensorboard"}
    assert mounting(rendered(WORKERS)) == {"digits-worker", "digits-tensorboard"}
    everywhere = rendered("storage: {size: 20Gi, class: nfs, mount: all}\n" + CLUSTER)
    assert mounting(everywhere) == {"digits-chief", "digits-worker", "digits-ps", "digits-evaluator", "digits-tensorboard"}
    claim = everywhere["PersistentVolumeClaim", "digits"]["spec"]
    assert claim == {"accessModes": ["ReadWriteMany"], "storageClassName": "nfs", "resources": {"requests": {"storage": "20Gi"}}}


def test_an_existing_claim_is_used_instead(rendered: Rendered) -> None:
    objects = rendered(CLUSTER + "kubernetes: {claim: team-runs}\n")
    assert not [kind for kind, _ in objects if kind == "PersistentVolumeClaim"]
    assert pod(objects, "chief")["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": "team-runs"}


def test_pods_with_a_volume_for_one_node_are_put_on_one_node_with_a_note(rendered: Rendered, text: Callable[..., str]) -> None:
    spec = "storage: {access: ReadWriteOnce}\n" + CLUSTER
    objects = rendered(spec)
    terms = {}
    for template in pods(objects):
        affinity = template["spec"].get("affinity", {}).get("podAffinity", {})
        role = template["metadata"]["labels"]["app.kubernetes.io/component"]
        terms[role] = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
        if terms[role]:
            assert terms[role][0]["labelSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert {role for role, term in terms.items() if term} == {"chief", "evaluator", "tensorboard"}
    # The chief's term matches itself, so the chief may be placed first. The others wait for it, or follow each other once it has ended.
    others = {role: term[0]["labelSelector"].get("matchExpressions") for role, term in terms.items() if term}
    assert others["chief"] is None
    assert others["evaluator"][0]["values"] == ["chief", "tensorboard"]
    assert others["tensorboard"][0]["values"] == ["chief", "evaluator"]
    assert pod(rendered(CLUSTER), "chief")["spec"]["affinity"] == pod(objects, "chief")["spec"]["affinity"]  # the default
    assert "# Note: chief, evaluator and tensorboard are put on one node, as storage.access is ReadWriteOnce." in text(spec)


def test_a_volume_for_one_node_is_refused_for_several_workers(rendered: Rendered) -> None:
    spec = "storage: {access: ReadWriteOnce}\n" + WORKERS
    with pytest.raises(UsageError) as refused:
        rendered(spec)
    assert "3 workers and tensorboard" in refused.value.message
    assert all(way in refused.value.remedy for way in ("ReadWriteMany", "add a chief", "one_node"))
    tied = rendered(spec + "kubernetes: {one_node: true}\n")
    assert all("affinity" in template["spec"] for template in pods(tied))
    with_chief = spec.replace("{worker:", "{chief: {}, worker:")
    assert mounting(rendered(with_chief)) == {"digits-chief", "digits-tensorboard"}


def test_a_volume_for_one_pod_is_refused_for_two(rendered: Rendered) -> None:
    spec = "storage: {access: ReadWriteOncePod}\n" + TRAIN
    with pytest.raises(UsageError, match="one pod; the volume is mounted by chief and tensorboard") as refused:
        rendered(spec)
    assert "set tensorboard to false" in refused.value.remedy
    objects = rendered(spec + "tensorboard: false\n")
    assert "affinity" not in pod(objects, "chief")["spec"]


def test_code_becomes_a_configmap_with_its_directories(rendered: Rendered, tmp_path: Path) -> None:
    code = tmp_path / "src"
    (code / "my_model").mkdir(parents=True)
    (code / "__pycache__").mkdir()
    (code / ".git").mkdir()
    (code / "train.py").write_text("print('hello')\n")
    (code / "my_model" / "net 1.py").write_text("x = 1\n")
    paths = ("my_model_2f_net 1.py", "my_model_2f", "x_2f_2f_a.py", "my_model_5f_2f_net 1.py")
    texts = {path: f"path = {path!r}\n" for path in [*paths, "x/2f_a.py", "x_2f/a.py"]}
    for path, text in texts.items():
        (code / path).parent.mkdir(exist_ok=True)
        (code / path).write_text(text)
    (code / "weights.bin").write_bytes(b"\xff\x00\xfe")
    (code / "__pycache__" / "train.pyc").write_bytes(b"")
    (code / ".git" / "HEAD").write_text("")
    objects = rendered("command: [python, train.py]\ncode: ./src\n")
    (stored,) = [one for (kind, name), one in objects.items() if kind == "ConfigMap" and name.startswith("digits-code-")]
    (volume,) = [volume for volume in pod(objects, "chief")["spec"]["volumes"] if volume["name"] == "code"]
    files = {
        item["path"]: stored["data"].get(item["key"]) or base64.b64decode(stored["binaryData"][item["key"]])
        for item in volume["configMap"]["items"]
    }
    assert files == {"train.py": "print('hello')\n", "my_model/net 1.py": "x = 1\n", "weights.bin": b"\xff\x00\xfe"} | texts
    assert volume["configMap"]["name"] == stored["metadata"]["name"]
    assert container(objects, "chief")["workingDir"] == "/code"
    assert {"name": "code", "mountPath": "/code", "readOnly": True} in container(objects, "chief")["volumeMounts"]


def test_keys_of_code_are_escaped_further_only_if_two_are_the_same(rendered: Rendered, tmp_path: Path) -> None:
    def keys(*paths: str) -> list[str]:
        for path in paths:
            (tmp_path / "src" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "src" / path).write_text("x = 1\n")
        objects = rendered("command: [python, train.py]\ncode: ./src\n")
        return [key for (kind, _), one in objects.items() if kind == "ConfigMap" for key in one.get("data", {}) if key.endswith(".py")]

    names = ["a_2f_b.py", "a_b_c.py", "net_2f_50_20_v2.py", "train.py"]
    assert sorted(keys("a/b.py", "a_b_c.py", "net_2f_50 v2.py", "train.py")) == names
    assert set(keys("net/50 v2.py")) == {"a_2f_b.py", "a_5f_b_c.py", "net_2f_50_20_v2.py", "net_5f_2f_5f_50_20_v2.py", "train.py"}


def test_code_that_is_too_large_for_a_configmap_needs_an_image(rendered: Rendered, text: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    spec = "command: [python, train.py]\ncode: ./src\n"
    (tmp_path / "src" / "train.py").write_text("x" * 300_000)
    assert "kubectl apply --server-side" in text(spec)
    (tmp_path / "src" / "lines.py").write_text("π\n" * 200_000, encoding="utf-8")  # 600,000 bytes, 1,600,000 in JSON
    assert "kubectl apply --server-side" in text(spec)
    (tmp_path / "src" / "more.py").write_text("x" * 900_000)
    with pytest.raises(UsageError) as refused:
        rendered(spec)
    assert "1024 KiB" in refused.value.message
    assert "launcher image build --code" in refused.value.remedy


def test_changed_code_makes_another_immutable_configmap(rendered: Rendered, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    names = set()
    for program in ("print(1)", "print(2)", "print(1)"):
        (tmp_path / "src" / "train.py").write_text(program)
        objects = rendered("command: [python, train.py]\ncode: ./src\n")
        (stored,) = [one for (_, name), one in objects.items() if name.startswith("digits-code-")]
        assert stored["immutable"] is True
        names.add(stored["metadata"]["name"])
    assert len(names) == 2


def test_pods_with_parts_of_gpus_tolerate_the_taint_of_whole_gpus(rendered: Rendered) -> None:
    spec = "strategy: single\nroles: {chief: {gpus: 1}}\ntrain: {workload: mnist}\nkubernetes: {gpu_resource: NAME}\n"

    def tolerated(name: str) -> list[str]:
        return [one["key"] for one in pod(rendered(spec.replace("NAME", name)), "chief")["spec"]["tolerations"]]

    assert tolerated("nvidia.com/mig-1g.5gb") == ["nvidia.com/mig-1g.5gb", "nvidia.com/gpu"]
    assert tolerated("nvidia.com/gpu") == ["nvidia.com/gpu"]
    assert tolerated("amd.com/gpu") == ["amd.com/gpu"]


def test_a_task_may_have_no_cpu_limit(rendered: Rendered) -> None:
    sidecars = "sidecars: [{name: log, image: busybox:1, command: [cat], cpu: 1, memory: 1Gi}]\n"
    spec = "roles: {chief: {cpu: 2, memory: 4Gi}}\ntrain: {workload: mnist}\n" + sidecars
    pod_spec = pod(rendered(spec + "kubernetes: {cpu_limit: none}\n"), "chief")["spec"]
    assert pod_spec["containers"][0]["resources"] == {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"memory": "4Gi"}}
    assert pod_spec["initContainers"][0]["resources"] == {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
    assert container(rendered(spec), "chief")["resources"]["limits"] == {"cpu": "2", "memory": "4Gi"}


def test_every_pod_has_the_service_account_and_only_tasks_get_its_token(rendered: Rendered) -> None:
    objects = rendered(CLUSTER + "kubernetes: {service_account: trainer}\n")
    tokens: dict[str, list[bool]] = {one["spec"]["serviceAccountName"]: [] for one in pods(objects)}
    for one in pods(objects):
        tokens[one["spec"]["serviceAccountName"]].append(one["spec"]["automountServiceAccountToken"])
    assert tokens == {"trainer": [True, True, True, True, False]}
