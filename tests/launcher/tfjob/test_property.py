"""Any TFJob becomes a spec whose pods have its image, arguments, variables, resources and mounts."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from launcher.errors import Problem, SpecError
from launcher.spec.loader import load
from launcher.tfjob.convert import convert
from tests.launcher.tfjob.pods import check

Draw = st.DrawFn
NAMES = ["A", "B", "FROM_SECRET", "lower_case", "dotted.name", "PYTHONPATH", "OMP_NUM_THREADS", "RUN_DIR", "HOME"]
PIECES = st.sampled_from(
    [
        *(
            "train.py",
            "--steps=1",
            "1e-3",
            "010",
            "yes",
            "null",
            "~",
            "12:30",
            "",
            " ",
            "\n",
            "\t",
            "# no comment",
            ": ",
            "- x",
            "[",
            "*",
            "é",
            "'",
            '"',
        ),
        *("$", "$$", "$$$", "$(", "${HOME}", "$(date)", "$(TF_CONFIG)", "$(RUN_NAME)", "$()", *(f"$({name})" for name in NAMES)),
    ]
)
TEXTS = st.lists(PIECES, max_size=3).map("".join)
SOURCES = st.sampled_from(
    [
        {"secretKeyRef": {"name": "account", "key": "token"}},
        {"secretKeyRef": {"name": "account", "key": "token", "optional": True}},
        {"configMapKeyRef": {"name": "settings", "key": "zone"}},
        {"fieldRef": {"fieldPath": "spec.nodeName"}},
        {"resourceFieldRef": {"resource": "limits.cpu"}},
    ]
)
VALUES = st.one_of(TEXTS.map(lambda text: {"value": text}), SOURCES.map(lambda one: {"valueFrom": one}))
ENV_FROM = st.sampled_from([{"secretRef": {"name": "s3"}}, {"prefix": "P_", "configMapRef": {"name": "settings", "optional": True}}])
AMOUNTS = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.sampled_from([1, "2", "500m", "0.5", "1.1", "100"]),
        "memory": st.sampled_from(["1Gi", "512Mi", 1073741824]),
        "ephemeral-storage": st.just("1Gi"),
    },
)
VOLUMES = st.sampled_from(["run", "tmp", "shm", "code", "tf-launcher", "data", "sets"])
VOLUME_SOURCES: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"emptyDir": {}},
        {"persistentVolumeClaim": {"claimName": "data"}},
        {"secret": {"secretName": "s", "defaultMode": 256}},
        {"hostPath": {"path": "/mnt"}},
    ]
)
MOUNT_PATHS = st.sampled_from(["/runs", "/data", "/data/inner", "/tmp", "/dev/shm", "/code", "/sets/", "/tmp/deep"])
SHAPES = [
    {"Worker": 1}, {"Worker": 3}, {"Chief": 1}, {"MASTER": 1, "worker": 2}, {"PS": 1}, {"PS": 2, "Worker": 2}, {"Chief": 1, "Ps": 1, "Worker": 1},
    {"Worker": 1, "Evaluator": 1}, {"Chief": 1, "Evaluator": 1}, {"PS": 1, "Worker": 2, "Evaluator": 1},
]  # fmt: skip


@st.composite
def mounts(draw: Draw, names: list[str]) -> list[dict[str, Any]]:
    mount_paths = draw(st.lists(MOUNT_PATHS, max_size=4 if names else 0, unique=True))
    options: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
        [{}, {"readOnly": True}, {"readOnly": False}, {"subPath": "part"}, {"mountPropagation": "None"}]
    )
    return [{"name": draw(st.sampled_from(names)), "mountPath": path, **draw(options)} for path in mount_paths]


@st.composite
def containers(draw: Draw, volumes: list[str]) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "tensorflow", "image": draw(st.sampled_from(["registry.example/a:1", "registry.example/b:1"]))}
    if draw(st.booleans()):
        container["command"] = ["python", *draw(st.lists(TEXTS, max_size=3))]
    container["args"] = draw(st.lists(TEXTS, max_size=3))
    variables = draw(st.lists(st.sampled_from(NAMES), max_size=5, unique=True))
    container["env"] = [{"name": name, **draw(VALUES)} for name in variables]
    container["envFrom"] = draw(st.lists(ENV_FROM, max_size=2, unique_by=str))
    limits, requests = draw(AMOUNTS), draw(AMOUNTS)
    gpus: st.SearchStrategy[dict[str, Any]] = st.sampled_from([{}, {"nvidia.com/gpu": 2}, {"nvidia.com/gpu": "1"}, {"amd.com/gpu": 1}])
    limits |= draw(gpus)
    container["resources"] = {
        "limits": limits,
        "requests": draw(st.sampled_from([requests, {key: limits[key] for key in limits if "/" not in key}])),
    }
    container["volumeMounts"] = draw(mounts(volumes))
    options: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
        [{}, {"workingDir": "/srv"}, {"workingDir": "srv"}, {"imagePullPolicy": "Always"}]
    )
    security: st.SearchStrategy[dict[str, Any]] = st.sampled_from([{}, {"runAsUser": 5}, {"readOnlyRootFilesystem": True}])
    container |= {**draw(options), "securityContext": draw(security)}
    return {key: value for key, value in container.items() if value != []}


@st.composite
def templates(draw: Draw) -> dict[str, Any]:
    names = draw(st.lists(VOLUMES, max_size=4, unique=True))
    spec: dict[str, Any] = {"containers": [draw(containers(names))], "volumes": [{"name": name, **draw(VOLUME_SOURCES)} for name in names]}
    helper = {
        "name": "helper",
        "image": "registry.example/h:1",
        "args": draw(st.lists(TEXTS, max_size=1)),
        "env": draw(st.lists(st.builds(lambda name, value: {"name": name, **value}, st.sampled_from(NAMES), VALUES), max_size=3)),
        "resources": {"limits": draw(AMOUNTS)},
        "volumeMounts": draw(mounts(names)),
    }
    section = draw(st.sampled_from([None, None, "containers", "initContainers"]))
    if section:
        spec[section] = draw(st.permutations([*spec.get(section, []), helper]))
    options: dict[str, list[Any]] = {
        "nodeSelector": [{"pool": "gpu"}, {"pool": "010"}],
        "tolerations": [[{"key": "pool", "operator": "Exists"}], [{"key": "pool", "effect": "Unknown"}]],
        "imagePullSecrets": [[{"name": "registry"}]],
        "priorityClassName": ["high", "low"],
        "serviceAccountName": ["trainer"],
        "terminationGracePeriodSeconds": [0, 10, 30, 60],
        "hostNetwork": [True],
        "securityContext": [{"runAsUser": 1001}, {"fsGroup": 5}],
    }
    for key in draw(st.lists(st.sampled_from(sorted(options)), max_size=3, unique=True)):
        spec[key] = draw(st.sampled_from(options[key]))
    return {"metadata": draw(st.sampled_from([{}, {"labels": {"team": "ml"}}, {"annotations": {"note": "yes"}}])), "spec": spec}


@st.composite
def tfjobs(draw: Draw) -> dict[str, Any]:
    shape = draw(st.sampled_from(SHAPES))
    policies = st.sampled_from([{}, {"restartPolicy": "OnFailure"}, {"restartPolicy": "ExitCode"}, {"restartPolicy": "Never"}])
    shared = draw(templates())
    replicas = {
        kind: {"replicas": count, **draw(policies), "template": draw(st.sampled_from([shared, None])) or draw(templates())}
        for kind, count in shape.items()
    }
    policy = draw(st.sampled_from([{}, {"backoffLimit": 0}, {"activeDeadlineSeconds": 60}, {"ttlSecondsAfterFinished": 5}]))
    spec = {"tfReplicaSpecs": replicas, "runPolicy": policy, "successPolicy": draw(st.sampled_from(["", "AllWorkers"]))}
    return {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": "job"}, "spec": spec}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("specs")


@given(tfjob=tfjobs())
@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_the_pods_of_the_spec_are_those_of_the_tfjob(tfjob: dict[str, Any], directory: Path) -> None:
    data = json.dumps(tfjob, ensure_ascii=False).encode()
    problems: list[Problem] = []
    try:
        imported = convert(data, "tfjob.yaml", directory=directory, output="cluster.yaml")
    except SpecError as error:
        problems = error.problems
    # The only values of these TFJobs that no spec can have: for variables that the launcher sets, values that only the cluster knows.
    assert [
        problem
        for problem in problems
        if not problem.message.startswith(("the launcher sets PYTHONPATH", "the launcher sets OMP_NUM_THREADS"))
    ] == []
    assume(not problems)
    (directory / "cluster.yaml").write_text(imported.text, encoding="utf-8")
    check(data, load(directory / "cluster.yaml"))
