"""The API server accepts the rendered objects of every example, of every option, and of a thousand tasks."""

import json
import os
from pathlib import Path

import pytest
import yaml

from launcher.cli.main import run
from tests.e2e.kubernetes.cluster import EXAMPLES, ROOT, Namespace, kubectl

pytestmark = pytest.mark.kubernetes

CLUSTER = (
    "strategy: parameter_server\nroles: {chief: {}, ps: {replicas: 2}, worker: {replicas: 2, cpu: 2, memory: 4Gi, gpus: 1}, evaluator: {}}"
)
OPTIONS = {
    "scheduling": """
  priority_class: high
  node_selector: {pool: train}
  tolerations: [{key: dedicated, value: ml, effect: NoSchedule}, {operator: Exists, effect: NoExecute, tolerationSeconds: 30}]
  placement: spread
  runtime_class: nvidia
  queue: team-a""",
    "packing": """
  placement: pack
  placement_key: topology.kubernetes.io/zone
  one_node: true""",
    "pods": """
  image_pull_policy: IfNotPresent
  image_pull_secrets: [registry]
  shm_size: 2Gi
  user: 4711
  ttl: 7d
  labels: {team: vision}
  annotations: {example.com/owner: me}
  claim: team-runs""",
    "environment": """
  env_from:
    - {secret: aws, optional: true}
    - {config_map: settings, prefix: S3_}
    - {secret: tokens, key: hub, name: HUB_TOKEN}
  volumes:
    - {name: sets, mount_path: /sets, source: {persistentVolumeClaim: {claimName: sets}}}
    - {name: keys, mount_path: /keys, source: {secret: {secretName: keys}}, roles: [chief]}""",
    "attendant": """
  attendant: {service_account: robot, image: 'registry.example/team/trainer:1', cpu: 100m, memory: 128Mi}
  ttl: 7d
  egress: tasks""",
    "old": """
  version: "1.26"
  tensorboard: false""",
    "overrides": """
  overrides:
    all: {spec: {schedulerName: other}}
    worker: {spec: {containers: [{name: trainer, env: [{name: NCCL_DEBUG, value: INFO}]}], hostAliases: [{ip: 10.0.0.1, hostnames: [a]}]}}
    tensorboard: {metadata: {annotations: {a: b}}}""",
}


def accepted(namespace: Namespace, *source: str) -> str:
    """Apply objects as a strict dry run on the server, and return its output; fail on any warning, including those of Pod Security."""
    result = kubectl("-n", namespace.name, "apply", "--dry-run=server", "--validate=strict", *source)
    assert result.stderr == ""
    return result.stdout


@pytest.fixture(scope="module")
def examples(namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> set[tuple[str, str]]:
    """Apply all examples as one dry run; return kind and name of each object that the server accepts."""
    directory = tmp_path_factory.mktemp("all")
    kustomization = {"resources": [os.path.relpath(ROOT / "k8s" / name, directory) for name in EXAMPLES]}
    (directory / "kustomization.yaml").write_text(json.dumps(kustomization))
    lines = (line.partition(" created ")[0].partition("/") for line in accepted(namespace, "-k", str(directory)).splitlines())
    return {(kind.partition(".")[0], name) for kind, _, name in lines}


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_accepted(example: str, examples: set[tuple[str, str]]) -> None:
    documents = [document for path in (ROOT / "k8s" / example).glob("*.yaml") for document in yaml.safe_load_all(path.read_text())]
    names = [(document["kind"].lower(), document["metadata"]["name"]) for document in documents if "metadata" in document]
    assert len(set(names)) == len(names) >= 8
    assert set(names) <= examples


@pytest.mark.parametrize("options", OPTIONS)
def test_every_option_is_accepted(options: str, namespace: Namespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        f"version: 1\nname: digits\n{CLUSTER}\ntrain: {{workload: mnist_mlp}}\nlimits: {{deadline: 1h}}\nkubernetes:{OPTIONS[options]}\n"
    )
    assert run(["render", str(spec), "--to", "kubernetes"]) == 0
    manifests = tmp_path / "manifests.yaml"
    manifests.write_text(capsys.readouterr().out)
    accepted(namespace, "-f", str(manifests))


def test_a_thousand_tasks_are_accepted(namespace: Namespace, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    roles = "{chief: {}, ps: {replicas: 100}, worker: {replicas: 899}}"
    spec.write_text(f"version: 1\nname: wide\nstrategy: parameter_server\nroles: {roles}\ntrain: {{workload: mnist_mlp}}\n")
    out = tmp_path / "out"
    assert run(["render", str(spec), "--to", "kubernetes", "-o", str(out)]) == 0
    assert "job.batch/wide-worker created" in accepted(namespace, "-k", str(out))
