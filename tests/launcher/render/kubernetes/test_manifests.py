"""The objects of a run: the environment of each task, the rules for failed pods, and the network policies."""

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.cli.main import run
from launcher.errors import LauncherError, UsageError
from launcher.plan.spec_file import plan_file
from launcher.render import parent_file
from tests.launcher.render.kubernetes.conftest import CLUSTER, HEAD, TRAIN, Objects, Rendered, cluster_name, container, pod, pods
from trainer.exit_codes import ExitCode
from trainer.restart_in_place import NoRestart, RestartHistory, RestartPolicy, decide_restart

OWN = "image: tensorflow/tensorflow:2.21.0\ncommand: [python, train.py]\n"  # a program, in an image without the trainer


def environment(objects: Objects, role: str, index: int) -> dict[str, str]:
    """Return the variables of one task as the kubelet sets them: in order, with $(NAME) replaced by the value of an earlier one."""
    values: dict[str, str] = {}

    def expand(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else values.get(match[1], match[0])

    for entry in container(objects, role)["env"]:
        source = entry.get("valueFrom", {})
        if "configMapKeyRef" in source:
            reference = source["configMapKeyRef"]
            values[entry["name"]] = objects["ConfigMap", reference["name"]]["data"][reference["key"]]
        elif "fieldRef" in source:
            assert source["fieldRef"]["fieldPath"] == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
            values[entry["name"]] = str(index)
        else:
            values[entry["name"]] = re.sub(r"\$\$|\$\((\w+)\)", expand, entry["value"])
    return values


def test_other_addresses_make_another_immutable_configmap(rendered: Rendered) -> None:
    """A Job's pod template is immutable: a running Job keeps the addresses with which it was created, whatever is applied later."""
    roles = "strategy: parameter_server\nroles: {{chief: {{}}, ps: {{replicas: 1}}, worker: {{replicas: {}}}}}\ntrain: {{workload: mnist, steps: {}}}\n"
    first, same, other = (rendered(roles.format(workers, steps)) for workers, steps in ((2, 10), (2, 20), (3, 10)))
    assert cluster_name(first) == cluster_name(same) != cluster_name(other)
    assert first["ConfigMap", cluster_name(first)]["immutable"] is True
    for objects in (first, other):
        sources = [entry.get("valueFrom", {}) for entry in container(objects, "chief")["env"]]
        names = {source["configMapKeyRef"]["name"] for source in sources if "configMapKeyRef" in source}
        assert names == {cluster_name(objects)}


def test_each_role_has_one_indexed_job_beside_the_objects_that_all_need(rendered: Rendered) -> None:
    objects = rendered()
    assert list(objects) == [
        ("PersistentVolumeClaim", "digits"),
        ("ConfigMap", cluster_name(objects)),
        ("NetworkPolicy", "digits"),
        ("NetworkPolicy", "digits-tensorboard"),
        ("Service", "digits"),
        ("Job", "digits-chief"),
        ("Job", "digits-worker"),
        ("Job", "digits-ps"),
        ("Job", "digits-evaluator"),
        ("Service", "digits-tensorboard"),
        ("Deployment", "digits-tensorboard"),
    ]
    for (kind, _), job in objects.items():
        if kind == "Job":
            spec = job["spec"]
            assert spec["completionMode"] == "Indexed"
            assert spec["completions"] == spec["parallelism"] == (2 if job["metadata"]["name"] == "digits-worker" else 1)
            assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_each_task_gets_the_tf_config_of_the_plan(rendered: Rendered, tmp_path: Path) -> None:
    objects = rendered()
    _, plan = plan_file(tmp_path / "digits.yaml", [], "kubernetes", tmp_path)
    for task in plan.tasks:
        tf_config = json.loads(environment(objects, task.role, task.index)["TF_CONFIG"])
        assert tf_config == task.tf_config
        if task.address:
            host, _, port = task.address.partition(":")
            hostname, _, service = host.partition(".")
            # The host name that the Job controller gives a pod, in its subdomain.
            assert hostname == f"{objects['Job', f'digits-{task.role}']['metadata']['name']}-{task.index}"
            assert pod(objects, task.role)["spec"]["subdomain"] == service
            assert int(port) == 2222
    service = objects["Service", "digits"]["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    labels = pod(objects, "worker")["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()
    assert not service["selector"].items() <= objects["Deployment", "digits-tensorboard"]["spec"]["template"]["metadata"]["labels"].items()


def test_tf_config_may_call_the_chief_master(rendered: Rendered) -> None:
    objects = rendered("strategy: multi_worker_mirrored\nroles: {chief: {}, worker: {}}\ncommand: [a]\ntf_config: {master: true}\n")
    assert json.loads(environment(objects, "chief", 0)["TF_CONFIG"])["task"] == {"type": "master", "index": 0}
    cluster = json.loads(environment(objects, "worker", 0)["TF_CONFIG"])["cluster"]
    assert list(cluster) == ["master", "worker"]


def test_texts_of_the_user_reach_the_task_unchanged(rendered: Rendered) -> None:
    spec = """\
        env: {PRICE: "5$ or $(HOME) or $$", PLAIN: "1"}
        command: [sh, -c, "echo $(hostname) $$"]
        """
    objects = rendered(spec)
    variables = environment(objects, "chief", 0)
    assert (variables["PRICE"], variables["PLAIN"]) == ("5$ or $(HOME) or $$", "1")
    command = container(objects, "chief")["command"]
    assert command[-3:] == ["sh", "-c", "echo $$(hostname) $$$$"]


def test_apart_from_addresses_a_thousand_workers_take_no_more_text_than_ten(text: Callable[..., str]) -> None:
    def parts(workers: int) -> tuple[int, int]:
        whole = text(f"strategy: parameter_server\nroles: {{chief: {{}}, ps: {{replicas: 4}}, worker: {{replicas: {workers}}}}}\n{TRAIN}")
        addresses = re.search(r"TF_CLUSTER: '(.*)'", whole)
        assert addresses
        return len(whole), len(addresses[1])

    few, few_addresses = parts(10)
    many, many_addresses = parts(1000)
    assert many - many_addresses <= 1.1 * (few - few_addresses)
    assert many_addresses < 60_000


def test_too_many_addresses_are_refused_with_the_number_that_fits(text: Callable[..., str]) -> None:
    with pytest.raises(LauncherError) as refused:
        text(f"strategy: multi_worker_mirrored\nroles: {{worker: {{replicas: 9000}}}}\n{TRAIN}")
    limit = re.search(r"at most (\d+) tasks", refused.value.remedy)
    assert limit
    assert int(limit[1]) >= 3000
    text(f"strategy: multi_worker_mirrored\nroles: {{worker: {{replicas: {limit[1]}}}}}\n{TRAIN}")


def test_rules_for_failed_pods(rendered: Rendered) -> None:
    objects = rendered(CLUSTER + "limits: {max_restarts: 4, deadline: 90m}\nkubernetes: {ttl: 2d}\n")

    def actions(role: str) -> list[tuple[str, Any]]:
        rules = objects["Job", f"digits-{role}"]["spec"]["podFailurePolicy"]["rules"]
        return [(rule["action"], rule.get("onExitCodes", {}).get("values") or rule["onPodConditions"][0]["type"]) for rule in rules]

    failed = ("FailJob", [75, 128, 137, 143, 255])
    # If the chief or its followers stay away, the others have nothing to wait for.
    assert (
        actions("chief")
        == actions("ps")
        == actions("worker")
        == actions("evaluator")
        == [("Ignore", "DisruptionTarget"), ("FailJob", [2, 75]), ("Ignore", [143]), failed]
    )
    operators = [rule["onExitCodes"]["operator"] for rule in objects["Job", "digits-chief"]["spec"]["podFailurePolicy"]["rules"][1:]]
    assert operators == ["In", "In", "NotIn"]
    spec = objects["Job", "digits-worker"]["spec"]
    assert (spec["backoffLimitPerIndex"], spec["maxFailedIndexes"], spec["podReplacementPolicy"]) == (4, 0, "Failed")
    # A Job of one task needs no count for each index.
    chief = objects["Job", "digits-chief"]["spec"]
    assert chief["backoffLimit"] == 4
    assert "backoffLimitPerIndex" not in chief
    assert (spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"]) == (5400, 172_800)
    assert all(
        rule["onExitCodes"]["containerName"] == container(objects, "worker")["name"] for rule in spec["podFailurePolicy"]["rules"][1:]
    )


CACHE = "volumes: [{name: cache, mount_path: /cache, source: {emptyDir: {sizeLimit: 1Mi}}}]\n"
UNSUPERVISED = OWN + "supervise: false\n"
LIMITED = "kubernetes: {overrides: {all: {spec: {containers: [{name: trainer, resources: {limits: {ephemeral-storage: 1Gi}}}]}}}}\n"


@pytest.mark.parametrize(
    "spec, stop_seconds, ignored",
    [
        (TRAIN + CACHE, "4", [143]),
        (TRAIN + CACHE + "limits: {grace_period: 4s}\n", None, []),  # too short to recognize an eviction by
        (UNSUPERVISED, None, [143]),
        (UNSUPERVISED + CACHE, None, []),
        (UNSUPERVISED + CACHE.replace("1Mi", "1Mi, medium: Memory"), None, [143]),
        (UNSUPERVISED + LIMITED, None, []),
    ],
)
def test_an_eviction_for_storage_counts_as_a_failure(rendered: Rendered, spec: str, stop_seconds: str | None, ignored: list[int]) -> None:
    objects = rendered(spec)
    variables = {one["name"]: one.get("value") for one in container(objects, "chief")["env"]}
    assert variables.get("TRAINER_STOP_SECONDS") == stop_seconds
    rules = objects["Job", "digits-chief"]["spec"]["podFailurePolicy"]["rules"][1:]
    assert [code for rule in rules if rule["action"] == "Ignore" for code in rule["onExitCodes"]["values"]] == ignored


@pytest.mark.parametrize("role", ["chief", "worker", "ps", "evaluator"])
def test_a_trainer_that_has_used_up_its_restarts_is_never_replaced(rendered: Rendered, role: str) -> None:
    rules = rendered(CLUSTER)["Job", f"digits-{role}"]["spec"]["podFailurePolicy"]["rules"]

    def action(code: int) -> str:
        exit_rules = (rule for rule in rules if "onExitCodes" in rule)
        return next((rule["action"] for rule in exit_rules if _fits(rule["onExitCodes"], code)), "Count")

    # Otherwise each pod that replaces it would count to the limit again.
    history = RestartHistory(restarts=RestartPolicy.max_restarts)
    decisions = {
        code: decide_restart(code, 1.0, history, RestartPolicy()) for code in (*range(3, 256), -signal.SIGKILL) if code != ExitCode.STOPPED
    }
    actions = {code: action(end.exit_code) for code, end in decisions.items() if isinstance(end, NoRestart)}
    assert set(actions) == set(decisions)
    assert set(actions.values()) == {"FailJob"}
    assert action(137) == "Count"  # a container killed as a whole, which its trainer could not foresee


def _fits(rule: dict[str, Any], code: int) -> bool:
    return (code in rule["values"]) is (rule["operator"] == "In")


def final_codes(objects: Objects, role: str) -> list[int]:
    """Return the exit codes that fail a role's Job at once, without those of a trainer's final failure."""
    rules = objects["Job", f"digits-{role}"]["spec"]["podFailurePolicy"]["rules"]
    (codes,) = [rule["onExitCodes"] for rule in rules if rule["action"] == "FailJob" and rule["onExitCodes"]["operator"] == "In"]
    return list(codes["values"])


def test_a_lost_peer_fails_the_jobs_of_tasks_that_restore_together_unless_they_are_of_one_job(rendered: Rendered) -> None:
    two_jobs = "strategy: multi_worker_mirrored\nroles: {chief: {}, worker: {replicas: 2}, evaluator: {}}\n"
    for program in (TRAIN, "command: [python, train.py]\n"):
        objects = rendered(two_jobs + program)
        assert final_codes(objects, "chief") == final_codes(objects, "worker") == [2, 75]
    assert final_codes(rendered(two_jobs + OWN), "chief") == [2, 75]
    # Kubernetes ends the tasks of one Job together. Whether a program without a parent waits, and its exit code, are unknown.
    assert final_codes(rendered(two_jobs.replace("chief: {}, ", "") + TRAIN), "worker") == [2]
    assert final_codes(rendered(two_jobs + OWN + "supervise: false\n"), "worker") == [2]
    (jobset,) = [one for (kind, _), one in rendered(two_jobs + TRAIN, to="jobset").items() if kind == "JobSet"]
    replicated = {one["name"]: one["template"] for one in jobset["spec"]["replicatedJobs"]}
    assert final_codes({("Job", f"digits-{name}"): template for name, template in replicated.items()}, "worker") == [2]


def test_failures_of_a_program_without_a_parent_are_counted_by_the_job(rendered: Rendered) -> None:
    def last_operator(spec: str) -> str:
        rule = rendered(spec)["Job", "digits-chief"]["spec"]["podFailurePolicy"]["rules"][-1]
        return str(rule["onExitCodes"]["operator"])

    assert last_operator(OWN + "supervise: false\n") == "In"
    assert last_operator(OWN) == "NotIn"
    assert last_operator("command: [python, train.py]\n") == "NotIn"
    assert last_operator("image: my/trainer:1\n" + TRAIN) == "NotIn"


ROLES = """\
strategy: parameter_server
roles:
  chief: {command: [python, lead.py, $HOME], env: {LEVEL: "3"}}
  worker: {replicas: 2, image: "worker:1", args: [--train, $HOME], max_restarts: 2}
  ps: {image: "ps:1", restart: exit_code, working_dir: /srv}
"""


def test_each_role_runs_its_own_program(rendered: Rendered) -> None:
    objects = rendered(ROLES)
    chief, worker, ps = (container(objects, role) for role in ("chief", "worker", "ps"))
    assert [one["image"] for one in (worker, ps)] == ["worker:1", "ps:1"]
    assert chief["command"][-3:] == ["python", "lead.py", "$$HOME"]
    assert ("command" in worker, worker["args"]) == (False, ["--train", "$$HOME"])
    assert not {"command", "args"} & set(ps)
    assert ps["workingDir"] == "/srv"
    assert environment(objects, "chief", 0)["LEVEL"] == "3"
    assert "LEVEL" not in environment(objects, "ps", 0)
    assert not [name for kind, name in objects if "parent" in name]  # our image has it, and entrypoints get none


def test_tasks_with_security_image_have_the_rights_of_their_image(rendered: Rendered) -> None:
    objects = rendered(ROLES + "security: image\n")
    for role in ("chief", "worker", "ps"):
        assert container(objects, role)["securityContext"] == {"allowPrivilegeEscalation": False}
        security = pod(objects, role)["spec"]["securityContext"]
        assert set(security) == {"fsGroup", "fsGroupChangePolicy", "seccompProfile"}
        assert "HOME" not in environment(objects, role, 0)
        # The file system is writable, so /tmp is the image's.
        assert "/tmp" not in [mount["mountPath"] for mount in container(objects, role)["volumeMounts"]]
        assert "tmp" not in [volume["name"] for volume in pod(objects, role)["spec"]["volumes"]]
    without_volume = rendered("image: mine:1\ncommand: [python, train.py]\nsecurity: image\n")
    # A group is needed only for the files of the run's volume.
    assert pod(without_volume, "chief")["spec"]["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    board = objects["Deployment", "digits-tensorboard"]["spec"]["template"]["spec"]
    assert board["securityContext"]["runAsNonRoot"] is True
    assert board["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True


def test_the_job_restarts_an_entrypoint(rendered: Rendered) -> None:
    objects = rendered(ROLES)
    assert objects["Job", "digits-worker"]["spec"]["backoffLimitPerIndex"] == 2
    assert final_codes(objects, "worker") == [2]
    assert final_codes(objects, "ps") == list(range(1, 128))
    never = rendered(ROLES.replace("exit_code", "never"))["Job", "digits-ps"]["spec"]
    assert (never["backoffLimit"], never["template"]["spec"]["restartPolicy"]) == (0, "Never")
    with pytest.raises(UsageError, match="restart is always; Kubernetes") as refused:
        rendered(ROLES.replace("exit_code", "always"))
    assert "`command`" in refused.value.remedy


def test_tensorboard_is_started_by_the_trainers_module_if_the_image_has_it(rendered: Rendered) -> None:
    def module(spec: str) -> str:
        (tensorboard,) = rendered(spec)["Deployment", "digits-tensorboard"]["spec"]["template"]["spec"]["containers"]
        command = tensorboard["command"]
        return str(command[command.index("-m") + 1])

    assert module("image: my/trainer:1\n" + TRAIN) == "trainer.tensorboard"
    own = OWN + "storage: {}\n"
    assert module(own) == module(own + "supervise: false\n") == "tensorboard.main"


def test_a_program_in_an_image_of_ones_own_has_a_volume_and_tensorboard_only_if_the_spec_has_storage(rendered: Rendered) -> None:
    def has(spec: str) -> tuple[bool, bool, bool, bool]:
        objects = rendered(spec)
        pod = objects["Job", "digits-chief"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        return (
            ("PersistentVolumeClaim", "digits") in objects,
            ("Deployment", "digits-tensorboard") in objects,
            any(volume["name"] == "run" for volume in pod["volumes"])
            and any(mount["name"] == "run" for mount in container["volumeMounts"]),
            any(variable["name"] == "RUN_DIR" for variable in container["env"]),
        )

    every, none = (True,) * 4, (False,) * 4
    assert has(OWN) == has(OWN + "kubernetes: {one_node: true}\n") == none
    assert has(OWN + "storage: {}\n") == has("command: [python, train.py]\n") == has("image: my/trainer:1\n" + TRAIN) == every
    assert has(OWN + "kubernetes: {claim: there}\n") == (False, True, True, True)
    one_of_two = "command: [a]\nstrategy: multi_worker_mirrored\nroles: {chief: {image: 'my:1'}, worker: {replicas: 2}}\n"
    assert has(one_of_two) == every


def test_an_image_of_ones_own_gets_the_parent_of_a_command_as_an_immutable_file(rendered: Rendered) -> None:
    for to in ("kubernetes", "jobset"):
        objects = rendered(OWN, to=to)
        ((name, config_map),) = [(name, one) for (kind, name), one in objects.items() if kind == "ConfigMap" and "parent" in name]
        assert re.fullmatch("digits-parent-[0-9a-f]{8}", name)
        assert config_map["immutable"] is True
        assert config_map["data"] == {"parent.py": parent_file.text()}
    spec = pod(rendered(OWN), "chief")["spec"]
    assert container(rendered(OWN), "chief")["command"] == ["python3", "-I", "-S", "/tf-launcher/parent.py", "--", "python", "train.py"]
    assert {"name": "tf-launcher", "configMap": {"name": name}} in spec["volumes"]
    assert {"name": "tf-launcher", "mountPath": "/tf-launcher", "readOnly": True} in spec["containers"][0]["volumeMounts"]
    for other in ("command: [python, train.py]\n", OWN + "supervise: false\n", "image: my/trainer:1\n" + TRAIN):
        assert not [name for kind, name in rendered(other) if "parent" in name]
        assert "tf-launcher" not in [volume["name"] for volume in pod(rendered(other), "chief")["spec"]["volumes"]]


def test_newer_fields_are_used_only_if_the_cluster_has_them(rendered: Rendered, text: Callable[..., str]) -> None:
    old = CLUSTER + 'kubernetes: {version: "1.28"}\n'
    spec = rendered(old)["Job", "digits-worker"]["spec"]
    assert spec["backoffLimit"] == 10
    assert "podFailurePolicy" in spec
    assert not {"podReplacementPolicy", "backoffLimitPerIndex", "maxFailedIndexes"} & set(spec)
    assert "for Kubernetes 1.28 or newer" in text(old).splitlines()[0]
    assert "for Kubernetes 1.29 or newer" in text(CLUSTER).splitlines()[0]


def test_only_tasks_of_the_run_reach_tensorflow_s_port_and_every_pod_reaches_tensorboard(rendered: Rendered) -> None:
    objects = rendered()
    policy = objects["NetworkPolicy", "digits"]["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    (rule,) = policy["ingress"]
    assert rule == {"from": [{"podSelector": policy["podSelector"]}], "ports": [{"protocol": "TCP", "port": 2222}]}
    selector = policy["podSelector"]["matchLabels"].items()
    board = objects["Deployment", "digits-tensorboard"]["spec"]["template"]
    assert all(selector <= pod(objects, role)["metadata"]["labels"].items() for role in ("chief", "worker", "ps", "evaluator"))
    assert not selector <= board["metadata"]["labels"].items()
    open_policy = objects["NetworkPolicy", "digits-tensorboard"]["spec"]
    assert open_policy["podSelector"]["matchLabels"].items() <= board["metadata"]["labels"].items()
    assert open_policy["ingress"] == [{"ports": [{"protocol": "TCP", "port": 6006}]}]


@pytest.mark.parametrize(
    "spec",
    [
        "command: [python, train.py]\n",
        "strategy: multi_worker_mirrored\nroles: {worker: {replicas: 2, gpus: 1}}\n" + TRAIN,
    ],
    ids=["own program", "nccl"],
)
def test_tasks_that_choose_ports_reach_each_other_on_every_port(spec: str, rendered: Rendered) -> None:
    (rule,) = rendered(spec)["NetworkPolicy", "digits"]["spec"]["ingress"]
    assert rule["from"]
    assert "ports" not in rule


def test_every_pod_is_admitted_by_pod_security_restricted(rendered: Rendered) -> None:
    # https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
    for template in pods(rendered()):
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert {kind for volume in spec["volumes"] for kind in volume if kind != "name"} <= {
            "emptyDir",
            "configMap",
            "persistentVolumeClaim",
        }
        for one in spec["containers"]:
            security = one["securityContext"]
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert (security["allowPrivilegeEscalation"], security["readOnlyRootFilesystem"]) == (False, True)
            assert "/tmp" in {mount["mountPath"] for mount in one["volumeMounts"]}


def test_tensorboard_reads_the_logs_and_cannot_write(rendered: Rendered) -> None:
    objects = rendered(CLUSTER + "tensorboard: {port: 7007}\n")
    (board,) = objects["Deployment", "digits-tensorboard"]["spec"]["template"]["spec"]["containers"]
    assert board["command"][board["command"].index("--logdir") + 1] == "/runs/digits/logs"
    assert [mount for mount in board["volumeMounts"] if mount["name"] == "run"] == [{"name": "run", "mountPath": "/runs", "readOnly": True}]
    assert objects["Service", "digits-tensorboard"]["spec"]["ports"] == [{"name": "http", "port": 7007, "targetPort": 6006}]
    for off in ("tensorboard: false\n", "kubernetes: {tensorboard: false}\n"):
        assert not any("tensorboard" in name for _, name in rendered(CLUSTER + off))


def test_tensorboard_s_image_and_resources_are_its_own(rendered: Rendered) -> None:
    def board(section: str) -> dict[str, Any]:
        (tensorboard,) = rendered(CLUSTER + section)["Deployment", "digits-tensorboard"]["spec"]["template"]["spec"]["containers"]
        assert isinstance(tensorboard, dict)
        return tensorboard

    assert board("")["resources"] == {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}}
    custom = board("tensorboard: {image: 'tensorflow/tensorflow:2.19.0', memory: 8Gi, cpu: 1.1}\n")
    assert custom["resources"] == {"requests": {"cpu": "1100m", "memory": "8Gi"}, "limits": {"cpu": "1100m", "memory": "8Gi"}}
    assert (custom["image"], custom["command"][:3]) == ("tensorflow/tensorflow:2.19.0", ["python", "-m", "tensorboard.main"])


def test_the_namespace_is_only_in_the_metadata_of_every_object(rendered: Rendered) -> None:
    assert all("namespace" not in one["metadata"] for one in rendered().values())
    objects = rendered(CLUSTER + "kubernetes: {namespace: team-a}\n")
    assert {one["metadata"]["namespace"] for one in objects.values()} == {"team-a"}
    assert "team-a" not in json.dumps(objects["ConfigMap", cluster_name(objects)]["data"])


def test_names_fit_in_63_characters_or_are_refused_early(rendered: Rendered) -> None:
    longest = "a" * 51
    objects = rendered(CLUSTER, head=f"version: 1\nname: {longest}\n")
    assert max(len(name) for kind, name in objects if kind != "ConfigMap") <= 63  # ConfigMaps' names may have 253, and are no labels
    with pytest.raises(LauncherError):
        rendered(CLUSTER, head=f"version: 1\nname: {longest}a\n")
    with pytest.raises(UsageError, match="65 characters"):
        rendered(CLUSTER, to="jobset", head=f"version: 1\nname: {longest}\n")


def test_data_of_this_machine_is_refused_and_data_on_a_volume_is_accepted(rendered: Rendered, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="pods do not see it"):
        rendered(f"train: {{workload: mnist, data: {tmp_path}}}\n")
    volume = "{name: sets, mount_path: /sets, source: {persistentVolumeClaim: {claimName: sets}}}"
    objects = rendered(f"train: {{workload: mnist, data: /sets/mnist}}\nkubernetes: {{volumes: [{volume}]}}\n")
    assert json.loads(environment(objects, "chief", 0)["TRAINER_SETTINGS"])["train"]["data"] == "/sets/mnist"


def test_a_directory_has_one_file_per_kind_and_a_kustomization(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec, out = tmp_path / "digits.yaml", tmp_path / "out"
    spec.write_text(HEAD + CLUSTER + "kubernetes: {namespace: team-a}\n")
    assert run(["render", str(spec), "--to", "kubernetes"]) == 0
    stream = list(yaml.safe_load_all(capsys.readouterr().out))
    assert run(["render", str(spec), "--to", "kubernetes", "-o", str(out)]) == 0
    assert capsys.readouterr().out == ""
    kustomization = yaml.safe_load((out / "kustomization.yaml").read_text())
    assert kustomization["namespace"] == "team-a"
    assert {path.name for path in out.iterdir()} == {"kustomization.yaml", *kustomization["resources"]}
    split = [one for name in kustomization["resources"] for one in yaml.safe_load_all((out / name).read_text())]
    assert sorted(map(str, split)) == sorted(map(str, stream))
    assert {name: {one["kind"] for one in yaml.safe_load_all((out / name).read_text())} for name in kustomization["resources"]} == {
        f"{one['kind'].lower()}.yaml": {one["kind"]} for one in stream
    }


def test_a_directory_with_other_yaml_files_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "digits.yaml"
    spec.write_text(HEAD + CLUSTER)
    assert run(["render", str(spec), "--to", "kubernetes", "-o", str(tmp_path)]) == 2
    assert "digits.yaml" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["digits.yaml"]
    assert run(["render", str(spec), "--to", "kubernetes", "-o", str(spec)]) == 2


def test_only_files_that_were_rendered_before_are_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec, out = tmp_path / "digits.yaml", tmp_path / "out"
    spec.write_text(HEAD + CLUSTER)
    command = ["render", str(spec), "--to", "kubernetes", "-o", str(out)]
    assert run(command) == 0
    with_tensorboard = {path.name for path in out.iterdir()}
    spec.write_text(HEAD + CLUSTER + "tensorboard: false\n")
    assert run(command) == 0
    assert with_tensorboard - {path.name for path in out.iterdir()} == {"deployment.yaml"}  # of TensorBoard
    original = (out / "kustomization.yaml").read_text()
    for kustomization in (original, original.replace("resources: [", "resources: [patch.yaml, "), "resources: [patch.yaml, job.yaml]\n"):
        (out / "kustomization.yaml").write_text(kustomization)
        (out / "patch.yaml").write_text((out / "job.yaml").read_text().replace("kind: Job", "kind: PodMonitor"))
        before = {path.name: path.read_text() for path in out.iterdir()}
        assert run(command) == 2
        assert "patch.yaml" in capsys.readouterr().err
        assert {path.name: path.read_text() for path in out.iterdir()} == before
