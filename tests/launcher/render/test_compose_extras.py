"""Init containers, sidecars and further volumes in Compose and Kubernetes."""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.errors import UsageError
from launcher.images import all_for
from launcher.plan.models import Target
from launcher.plan.spec_file import plan_file
from launcher.render.kubernetes import manifests
from launcher.render.targets import RenderSource, target
from launcher.spec.role_programs import sets_variables

# Indented like the text that a test appends.
PROGRAM = """\
        version: 1
        name: digits
        image: mine:1
        command: [python, train.py]
        storage: {}
"""
SPEC = """\
    version: 1
    name: digits
    image: mine:1
    command: [python, train.py]
    strategy: multi_worker_mirrored
    roles:
      chief: {sidecars: [{name: log, image: "fluent:1", env: {TOKEN: {secret: team, key: token}}, mounts: [{volume: work, mount_path: /in, read_only: true}]}]}
      worker: {init_containers: [{name: fetch, image: "curl:1", args: [$HOME]}]}
    volumes:
      - {name: work, mount_path: /work, source: {emptyDir: {}}}
      - {name: sets, mount_path: /sets, path: sets, sub_path: mnist, source: {persistentVolumeClaim: {claimName: sets}}}
      - {name: cache, source: {hostPath: {path: /var/cache}}}
      - {name: keys, mount_path: /keys, source: {secret: {secretName: keys}}, roles: [chief]}
    init_containers:
      - {name: fetch, command: [sh, -c, 'echo $HOME > /out/x'], cpu: 0.5, memory: 1Gi, mounts: [{volume: work, mount_path: /out}]}
      - {name: warm, image: "busybox:1", mounts: [{volume: cache, mount_path: /cache, read_only: false}]}
    """


@pytest.fixture
def source(tmp_path: Path) -> Callable[..., RenderSource]:
    (tmp_path / "sets").mkdir()

    def load(target: Target, spec: str = SPEC) -> RenderSource:
        (tmp_path / "digits.yaml").write_text(textwrap.dedent(spec))
        return RenderSource(*plan_file(tmp_path / "digits.yaml", [], target, tmp_path / "runs"), tmp_path)

    return load


def composed(source: RenderSource) -> dict[str, Any]:
    document = yaml.load(target("compose").render(source), Loader=yaml.CSafeLoader)
    assert isinstance(document, dict)
    return document


def pods(source: RenderSource) -> dict[str, Any]:
    objects = manifests.objects(manifests.run_of(source))
    return {one["metadata"]["name"].partition("-")[2]: one["spec"]["template"]["spec"] for one in objects if one["kind"] == "Job"}


def test_init_containers_come_before_sidecars_which_kubernetes_ends_with_the_task(source: Callable[..., RenderSource]) -> None:
    chief, worker = (pods(source("kubernetes"))[role]["initContainers"] for role in ("chief", "worker"))
    assert [(one["name"], one["image"], one.get("restartPolicy")) for one in chief] == [
        ("fetch", "mine:1", None),
        ("warm", "busybox:1", None),
        ("log", "fluent:1", "Always"),
    ]
    # A role's container replaces the spec's of the same name.
    assert [(one["name"], one["image"], one.get("args")) for one in worker] == [
        ("fetch", "curl:1", ["$$HOME"]),
        ("warm", "busybox:1", None),
    ]
    fetch, _, log = chief
    assert fetch["command"] == ["sh", "-c", "echo $$HOME > /out/x"]
    assert fetch["resources"] == {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "500m", "memory": "1Gi"}}
    assert log["env"][-1] == {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "team", "key": "token"}}}
    assert all(one["securityContext"]["capabilities"] == {"drop": ["ALL"]} for one in chief)


def test_volumes_are_mounted_at_their_paths_and_are_read_only_unless_they_begin_empty(source: Callable[..., RenderSource]) -> None:
    pod_specs = pods(source("kubernetes"))
    volumes = {role: {volume["name"] for volume in pod["volumes"]} & {"work", "sets", "cache", "keys"} for role, pod in pod_specs.items()}
    assert volumes == {"chief": {"work", "sets", "cache", "keys"}, "worker": {"work", "sets", "cache"}}
    task_mounts = {mount["name"]: mount for mount in pod_specs["worker"]["containers"][0]["volumeMounts"]}
    assert task_mounts["work"] == {"name": "work", "mountPath": "/work"}
    assert task_mounts["sets"] == {"name": "sets", "mountPath": "/sets", "subPath": "mnist", "readOnly": True}
    assert "cache" not in task_mounts
    fetch, warm, log = (one["volumeMounts"][1:] for one in pod_specs["chief"]["initContainers"])
    assert (fetch, log) == ([{"name": "work", "mountPath": "/out"}], [{"name": "work", "mountPath": "/in", "readOnly": True}])
    assert warm == [{"name": "cache", "mountPath": "/cache"}]


def test_compose_has_a_service_for_each_container_and_a_scratch_volume_for_each_task(source: Callable[..., RenderSource]) -> None:
    document = composed(source("docker"))
    services = document["services"]
    others = ["chief-fetch", "chief-warm", "chief-log", "worker-0", "worker-0-fetch", "worker-0-warm"]
    assert list(services) == ["prepare-volume", "chief", *others]
    completed = {"condition": "service_completed_successfully"}
    assert {name: services[name]["depends_on"] for name in ("chief", "chief-warm", "chief-fetch")} == {
        "chief": {"chief-warm": completed},
        "chief-warm": {"chief-fetch": completed},
        "chief-fetch": {"prepare-volume": completed},
    }
    log = services["chief-log"]
    assert (log["network_mode"], log["restart"], log["environment"]["TOKEN"]) == ("service:chief", "unless-stopped", None)
    assert log["labels"]["tf-launcher.sidecar-of"] == "chief"
    assert "tf-launcher.task" not in log["labels"]
    mounted = {
        name: [(one["type"], one["source"], one["target"], one.get("read_only", False)) for one in services[name]["volumes"]]
        for name in services
        if "volumes" in services[name]
    }
    assert mounted["chief"] == [("volume", "work-chief", "/work", False), ("bind", "./sets/mnist", "/sets", True)]
    assert mounted["chief-fetch"] == [("volume", "work-chief", "/out", False)]
    assert mounted["chief-warm"] == [("bind", "/var/cache", "/cache", False)]
    assert mounted["chief-log"] == [("volume", "work-chief", "/in", True)]
    assert services["prepare-volume"]["command"] == ["chown", "1000:1000", "/scratch/work-chief", "/scratch/work-worker-0"]
    assert document["volumes"] == {f"work-{task}": {"labels": {"tf-launcher.scratch-of": "digits"}} for task in ("chief", "worker-0")}
    assert (services["chief-fetch"]["cpus"], services["chief-fetch"]["mem_limit"]) == (0.5, "1g")
    # Init containers may download something, and do not reach TensorFlow's port.
    assert services["chief-fetch"]["networks"] == ["init"]
    assert services["chief"]["networks"] == ["cluster"]


def test_the_run_s_volume_is_prepared_before_the_first_init_container(source: Callable[..., RenderSource]) -> None:
    spec = (
        PROGRAM
        + """\
        init_containers: [{name: fetch, image: "curl:1"}, {name: warm, image: "busybox:1"}]
        sidecars: [{name: log, image: "fluent:1"}]
        """
    )
    services = composed(source("docker", spec))["services"]
    dependencies = {name: list(services[name]["depends_on"]) for name in services if "depends_on" in services[name]}
    assert dependencies == {
        "chief-fetch": ["prepare-volume"],
        "chief-warm": ["chief-fetch"],
        "chief": ["chief-warm"],
        "chief-log": ["chief", "prepare-volume"],
        "tensorboard": ["chief"],
    }


def test_a_notice_names_each_part_that_a_target_leaves_out(source: Callable[..., RenderSource]) -> None:
    assert source("kubernetes").plan.notices == ()
    assert [notice.partition(";")[0] for notice in source("docker").plan.notices] == ["volumes left out: keys"]
    left_out = ["init containers left out: fetch, warm", "sidecars left out: log", "volumes left out: work, sets, cache, keys"]
    assert [notice.partition(";")[0] for notice in source("local").plan.notices] == left_out
    text = target("compose").render(source("docker"))
    assert "# Note: volumes left out: keys; " in text
    assert "`docker compose up` is called in has to have TOKEN." in text
    assert "sidecars continue after their tasks" in text


def test_data_on_a_volume_that_compose_has_is_not_mounted_again(source: Callable[..., RenderSource]) -> None:
    spec = "version: 1\nname: digits\ntrain: {workload: mnist, data: /sets/mnist}\nvolumes: [{name: sets, mount_path: /sets, path: sets}]\n"
    chief = composed(source("docker", spec))["services"]["chief"]
    assert [one["target"] for one in chief["volumes"]] == ["/runs", "/sets"]
    assert '"data":"/sets/mnist"' in chief["environment"]["TRAINER_SETTINGS"]
    with pytest.raises(UsageError, match=r"the volume sets is .*/sets, a directory of this machine; pods do not see it"):
        pods(source("kubernetes", spec))


def test_only_containers_beside_tasks_with_the_run_s_volume_mount_it(source: Callable[..., RenderSource]) -> None:
    spec = "version: 1\nname: digits\nstrategy: parameter_server\nroles: {chief: SIDECAR, ps: {}, worker: {}}\ntrain: {workload: mnist}\n"
    sidecar = "{sidecars: [{name: up, image: 'up:1', mounts: [{volume: run, mount_path: /runs}]}]}"
    spec = spec.replace("SIDECAR", sidecar)
    [up] = pods(source("kubernetes", spec))["chief"]["initContainers"]
    assert up["volumeMounts"][1:] == [{"name": "run", "mountPath": "/runs"}]
    assert composed(source("docker", spec))["services"]["chief-up"]["volumes"] == [{"type": "volume", "source": "run", "target": "/runs"}]
    with pytest.raises(UsageError, match="the container up mounts the run's volume, which tasks of role ps do not mount"):
        pods(source("kubernetes", spec.replace("ps: {}", f"ps: {sidecar}")))


def test_mounts_of_the_run_s_volume_that_compose_leaves_out_are_named(source: Callable[..., RenderSource]) -> None:
    sidecars = 'sidecars: [{name: up, image: "up:1", mounts: [{volume: run, mount_path: /runs}]}]\n'
    head = "version: 1\nname: digits\nstrategy: multi_worker_mirrored\n" + sidecars
    training = f"{head}train: {{workload: mnist}}\nroles: {{worker: {{replicas: 2}}, evaluator: {{}}}}\n"
    program = f"{head}image: mine:1\ncommand: [python, train.py]\nroles: {{chief: {{}}, worker: {{}}}}\n"
    expected = "mounts of the run's volume left out: {}; only containers beside tasks with this volume can mount it"
    assert source("docker", training).plan.notices == (expected.format("up (worker)"),)
    assert source("docker", program).plan.notices == (expected.format("up (chief), up (worker)"),)
    assert source("docker", program + "storage: {}\n").plan.notices == ()


def test_their_images_are_the_run_s_and_their_variables_count_as_secret(source: Callable[..., RenderSource]) -> None:
    spec = source("docker").spec
    assert all_for(spec) == ["mine:1", "busybox:1", "fluent:1", "curl:1"]
    assert sets_variables(spec.model_dump())


def test_compose_interpolates_no_path(source: Callable[..., RenderSource]) -> None:
    spec = (
        PROGRAM
        + """\
        roles: {chief: {working_dir: /$w}}
        volumes: [{name: sets, path: ., mount_path: /$s}, {name: work, source: {emptyDir: {}}, mount_path: /$e}]
        sidecars:
          - {name: log, image: "fluent:1", working_dir: /$l, mounts: [{volume: run, mount_path: /$r, sub_path: $p}, {volume: sets, mount_path: /$m}]}
        """
    )
    services = composed(source("docker", spec))["services"]
    assert [services[name]["working_dir"] for name in ("chief", "chief-log")] == ["/$$w", "/$$l"]
    mounted = [one for name in ("chief", "chief-log") for one in services[name]["volumes"]]
    assert [one["target"] for one in mounted] == ["/runs", "/$$s", "/$$e", "/$$r", "/$$m"]
    assert mounted[3]["volume"] == {"subpath": "$$p"}
