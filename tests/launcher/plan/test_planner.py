"""The planner: the plan of a valid spec for each target."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import LauncherError, UsageError
from launcher.plan import role_rules
from launcher.plan.addresses import ENVIRONMENT_LIMIT, tf_config_text, with_addresses
from launcher.plan.machine import Machine
from launcher.plan.models import Plan, SecretKey, Target
from launcher.plan.plan_json import from_document, to_document
from launcher.plan.planner import plan
from launcher.spec.models import ClusterSpec
from tests.golden_messages import Golden
from trainer.settings import TrainerSettings

MACHINE = Machine(cores=8, python="/venv/bin/python", path="/usr/bin:/bin")
PS_ROLES = {"chief": {}, "worker": {"replicas": 2}, "ps": {"replicas": 2}, "evaluator": {}}


def spec(**fields: Any) -> ClusterSpec:
    document = {"version": 1, "name": "digits", **fields}
    if "command" not in document:
        document.setdefault("train", {"workload": "mnist_mlp"})
    return ClusterSpec.model_validate(document)


def planned(target: Target = "local", *, machine: Machine = MACHINE, **fields: Any) -> Plan:
    return plan(spec(**fields), target, run_dir="/runs/digits", digest="d1", spec_dir="/home/me", machine=machine)


def settings(planned_run: Plan, task: int = 0) -> TrainerSettings:
    return TrainerSettings.model_validate_json(planned_run.tasks[task].env["TRAINER_SETTINGS"])


@pytest.mark.parametrize(
    "target, chief, worker",
    [
        ("local", "127.0.0.1:2222", "127.0.0.1:2224"),
        ("docker", "chief:2222", "worker-1:2222"),
        ("kubernetes", "digits-chief-0.digits:2222", "digits-worker-1.digits:2222"),
    ],
)
def test_every_target_has_its_own_addresses(target: Target, chief: str, worker: str) -> None:
    result = planned(target, strategy="parameter_server", roles=PS_ROLES)
    addresses = {task.name: task.address for task in result.tasks}
    assert list(addresses) == ["chief", "worker-0", "worker-1", "ps-0", "ps-1", "evaluator"]
    assert (addresses["chief"], addresses["worker-1"], addresses["evaluator"]) == (chief, worker, "")


@pytest.mark.parametrize("target", ["local", "docker", "kubernetes"])
def test_the_chief_of_a_program_may_be_called_master_in_tf_config(target: Target) -> None:
    fields: dict[str, Any] = {"command": ["python", "train.py"], "tf_config": {"master": True}}
    result = planned(target, strategy="parameter_server", roles=PS_ROLES, **fields)
    moved = with_addresses(result, {task.name: f"{task.name}:1" for task in result.tasks if task.role != "evaluator"})
    for each in (result, moved):
        assert all(list(task.tf_config["cluster"]) == ["master", "worker", "ps"] for task in each.tasks)
        assert [task.tf_config["task"]["type"] for task in each.tasks] == ["master", "worker", "worker", "ps", "ps", "evaluator"]
    assert moved.tasks[1].tf_config["cluster"]["master"] == ["chief:1"]


def test_the_evaluator_has_the_cluster_s_addresses_but_is_not_in_it() -> None:
    result = planned(strategy="parameter_server", roles=PS_ROLES)
    for task in result.tasks:
        assert set(task.tf_config["cluster"]) == {"chief", "worker", "ps"}
        assert task.tf_config["task"] == {"type": task.role, "index": task.index}
    assert result.tasks[-1].tf_config["task"] == {"type": "evaluator", "index": 0}


def test_with_addresses_changes_the_addresses_everywhere_and_nothing_else() -> None:
    result = planned(strategy="parameter_server", roles=PS_ROLES)
    new_addresses = {name: f"127.0.0.1:{40000 + index}" for index, name in enumerate(["chief", "worker-0", "worker-1", "ps-0", "ps-1"])}
    moved = with_addresses(result, new_addresses)
    assert {task.name: task.address for task in moved.tasks} == {**new_addresses, "evaluator": ""}
    cluster = {
        "chief": [new_addresses["chief"]],
        "worker": [new_addresses["worker-0"], new_addresses["worker-1"]],
        "ps": [new_addresses["ps-0"], new_addresses["ps-1"]],
    }
    assert all(task.tf_config["cluster"] == cluster for task in moved.tasks)
    assert with_addresses(moved, {task.name: task.address for task in result.tasks if task.address}) == result


@pytest.mark.parametrize(
    "strategy, roles, mounts, required",
    [
        ("single", {"chief": {}}, {"chief"}, ("chief",)),
        ("single", {"chief": {}, "evaluator": {}}, {"chief", "evaluator"}, ("chief", "evaluator")),
        ("parameter_server", PS_ROLES, {"chief", "evaluator"}, ("chief", "evaluator")),
        ("multi_worker_mirrored", {"chief": {}, "worker": {"replicas": 2}}, {"chief"}, ("chief",)),
        ("multi_worker_mirrored", {"worker": {"replicas": 2}}, {"worker-0"}, ("worker-0",)),
    ],
)
def test_only_the_leader_and_the_evaluator_have_the_run_directory(
    strategy: str, roles: dict[str, Any], mounts: set[str], required: tuple[str, ...]
) -> None:
    result = planned(strategy=strategy, roles=roles)
    assert {task.name for task in result.tasks if task.mounts_run_dir} == mounts
    assert result.required_tasks == required


def test_a_users_own_program_has_the_run_directory_on_every_task() -> None:
    result = planned(strategy="parameter_server", roles=PS_ROLES, command=["python", "train.py"])
    assert all(task.mounts_run_dir for task in result.tasks)


@pytest.mark.parametrize(
    "roles, success, required",
    [
        (PS_ROLES, "chief", ("chief",)),
        (PS_ROLES, "all_workers", ("chief", "worker-0", "worker-1")),
        ({"worker": {"replicas": 2}, "ps": {}}, "chief", ("worker-0",)),
        ({"worker": {"replicas": 2}, "ps": {}}, "all_workers", ("worker-0", "worker-1")),
    ],
)
def test_the_success_of_a_users_own_evaluator_is_not_required(roles: dict[str, Any], success: str, required: tuple[str, ...]) -> None:
    result = planned(strategy="parameter_server", roles=roles, command=["python", "train.py"], success=success)
    assert result.required_tasks == required


def test_programs_in_containers_have_settings_for_the_end_of_their_run() -> None:
    fields: dict[str, Any] = {
        "strategy": "parameter_server",
        "roles": PS_ROLES,
        "command": ["python", "train.py"],
        "limits": {"worker_grace": "3s"},
    }
    ending = json.loads(plan(spec(**fields), "docker", run_dir="/runs/x").tasks[0].env["TRAINER_SETTINGS"])["ending"]
    graces = {"chief": 3.0, "worker": 3.0, "ps": 0.0, "evaluator": 600.0}
    assert ending == {"port": 2224, "success": "chief", "graces": graces, "grace_period": 30.0}
    assert "ending" not in json.loads(planned(**fields).tasks[0].env["TRAINER_SETTINGS"])


def test_restart_rules_follow_strategy_and_role() -> None:
    result = planned(strategy="parameter_server", roles=PS_ROLES, limits={"max_restarts": 4})
    assert {task.name: task.restart.scope for task in result.tasks if task.index == 0} == {
        "chief": "alone", "worker-0": "alone", "ps-0": "all", "evaluator": "alone",
    }  # fmt: skip
    assert {task.restart.max_restarts for task in result.tasks} == {4}
    mirrored = planned(strategy="multi_worker_mirrored", roles={"chief": {}, "worker": {}})
    assert [task.restart.scope for task in mirrored.tasks] == ["all", "all"]


def test_settings_carry_the_defaults_of_the_workload_and_the_limits() -> None:
    result = planned(limits={"max_restarts": 3, "start_timeout": "90s", "grace_period": "5s", "deadline": "2h"})
    task_settings = settings(result)
    assert task_settings.train is not None
    assert (task_settings.train.steps, task_settings.train.checkpoint.every_seconds) == (2000, 30)
    assert (task_settings.run, task_settings.run_dir, task_settings.scratch_dir) == (
        "digits",
        "/runs/digits",
        "/runs/digits/launcher/scratch",
    )
    assert (task_settings.max_restarts, task_settings.start_timeout, task_settings.spec_digest) == (3, 90, "d1")
    assert (result.start_timeout, result.grace_period, result.deadline) == (90, 5, 7200)


@pytest.mark.parametrize("gpus, replicas", [(0, 2), (4, 4)])
def test_mirrored_uses_the_chiefs_gpus_or_two_devices(gpus: int, replicas: int) -> None:
    assert settings(planned(strategy="mirrored", roles={"chief": {"gpus": gpus}})).local_replicas == replicas


def test_settings_say_whether_the_run_has_an_evaluator() -> None:
    assert settings(planned(roles={"chief": {}, "evaluator": {}})).has_evaluator
    assert not settings(planned()).has_evaluator


def test_a_local_command_runs_under_the_trainer_in_the_code_directory_with_the_launchers_python() -> None:
    (task,) = planned(command=["python", "train.py"], code="./src", env={"LEVEL": "3"}).tasks
    assert task.command == ("/venv/bin/python", "-P", "-m", "trainer", "--", "python", "train.py")
    assert task.cwd == "/home/me/src"
    assert task.env["PATH"] == "/venv/bin:/usr/bin:/bin"
    assert task.env["PYTHONPATH"].split(os.pathsep)[0] == "/home/me/src"
    assert task.env["LEVEL"] == "3"
    assert (task.env["RUN_DIR"], task.env["RUN_NAME"]) == ("/runs/digits", "digits")
    assert settings(planned(command=["python", "train.py"])).train is None


def test_without_code_local_tasks_start_in_the_directory_of_the_spec() -> None:
    assert planned(command=["./run.sh"]).tasks[0].cwd == "/home/me"


def test_a_users_env_may_change_our_variables_but_not_the_task_s_settings() -> None:
    env = planned(env={"OMP_NUM_THREADS": "3", "TRAINER_SETTINGS": "{}", "PATH": "/opt/bin", "PYTHONPATH": "/lib/mine"}).tasks[0].env
    assert env["OMP_NUM_THREADS"] == "3"
    assert json.loads(env["TRAINER_SETTINGS"])["run"] == "digits"
    assert env["PATH"] == "/venv/bin:/opt/bin"
    assert env["PYTHONPATH"].split(os.pathsep)[0] == "/lib/mine"
    for target in ("local", "docker", "kubernetes"):
        assert planned(target=target).tasks[0].env["PYTHONUNBUFFERED"] == "1"
        assert planned(target=target, env={"PYTHONUNBUFFERED": ""}).tasks[0].env["PYTHONUNBUFFERED"] == ""


def test_a_plan_has_no_values_of_secrets() -> None:
    secret = {"secret": "team", "key": "token"}
    roles = {"worker": {"replicas": 2, "env": {"MINE": secret, "TOKEN": "none"}}}
    result = planned("docker", strategy="multi_worker_mirrored", roles={"chief": {}, **roles}, env={"TOKEN": secret, "MINE": "chief's"})
    chief, worker, _ = result.tasks
    assert (chief.secrets, chief.env["MINE"]) == ({"TOKEN": SecretKey("team", "token")}, "chief's")
    assert (worker.secrets, worker.env["TOKEN"]) == ({"MINE": SecretKey("team", "token")}, "none")
    assert "TOKEN" not in chief.env
    assert from_document(json.loads(json.dumps(to_document(result)))) == result


def test_containers_of_our_image_run_its_trainer_and_others_the_parent_that_the_run_brings_or_only_the_command() -> None:
    command = ["python", "train.py"]
    image = "tensorflow/tensorflow:2.21.0"
    assert planned("docker", command=command).tasks[0].command == ("python", "-P", "-m", "trainer", "--", *command)
    assert planned("kubernetes", command=command, image=image).tasks[0].command == (
        *("python3", "-I", "-S", "/tf-launcher/parent.py"),
        *("--", "python", "train.py"),
    )
    (python, *_, variable, dashes, program, file) = planned("docker", command=command, image=image).tasks[0].command
    assert (python, dashes, program, file) == ("python3", "--", *command)
    assert "TRAINER_PARENT" in variable
    assert planned("docker", command=command, image=image, supervise=False).tasks[0].command == tuple(command)
    assert planned(command=command, image=image, supervise=False).tasks[0].command[-4:] == ("trainer", "--", *command)
    assert settings(planned("kubernetes")).scratch_dir == "/tmp/trainer"
    env = planned("docker", command=command, code="src").tasks[0].env
    assert env["PYTHONPATH"] == "/code"
    assert "OMP_NUM_THREADS" not in env


OWN_ROLES: dict[str, Any] = {
    "chief": {"env": {"LEVEL": "4", "MORE": "1"}, "args": ["--lead"]},
    "worker": {"image": "worker:1", "working_dir": "/srv", "max_restarts": 2, "restart": "exit_code"},
    "ps": {"image": "ps:1", "command": ["./ps"], "restart": "never"},
}


def test_fields_of_a_role_override_those_of_the_spec() -> None:
    result = planned("kubernetes", strategy="parameter_server", roles=OWN_ROLES, command=["python", "a.py"], env={"LEVEL": "3"})
    chief, worker, ps = result.tasks
    assert [task.image for task in result.tasks] == [None, "worker:1", "ps:1"]
    assert chief.command == ("python", "-P", "-m", "trainer", "--", "python", "a.py", "--lead")
    assert (worker.command[-3:], ps.command[-2:]) == (("--", "python", "a.py"), ("--", "./ps"))
    assert (worker.cwd, ps.cwd) == ("/srv", None)
    assert (chief.env["LEVEL"], chief.env["MORE"], worker.env["LEVEL"], "MORE" in worker.env) == ("4", "1", "3", False)
    assert [(task.restart.when, task.restart.max_restarts) for task in result.tasks] == [
        ("on_failure", 10),
        ("exit_code", 2),
        ("on_failure", 0),
    ]
    restarts = settings(result).restarts
    assert restarts is not None
    assert {role: limits.model_dump() for role, limits in restarts.items()} == {
        "worker": {"restart": "exit_code", "max_restarts": 2},
        "ps": {"restart": "on_failure", "max_restarts": 0},
    }
    assert settings(planned()).restarts is None


def test_an_image_without_a_command_runs_its_entrypoint_with_args() -> None:
    roles = {"worker": {"args": ["--steps", "5"]}, "ps": {"command": ["./ps"]}}
    result = plan(
        ClusterSpec.model_validate({"version": 1, "name": "digits", "strategy": "parameter_server", "roles": roles, "image": "mine:1"}),
        "docker",
        run_dir="/runs/digits",
    )
    worker, ps = result.tasks
    assert (worker.command, worker.is_entrypoint, worker.cwd) == (("--steps", "5"), True, None)
    assert (ps.command[-2:], ps.is_entrypoint) == (("--", "./ps"), False)
    assert from_document(json.loads(json.dumps(to_document(result)))) == result


@pytest.mark.parametrize(
    "roles, success, can_report",
    [
        ({"worker": {}, "ps": {"image": "ps:1", "command": ["./ps"]}}, "chief", True),
        ({"worker": {"image": "worker:1", "command": ["./train"]}, "ps": {"image": "ps:1"}}, "chief", True),
        ({"chief": {"command": ["./lead"]}, "worker": {"image": "worker:1"}, "ps": {"command": ["./ps"]}}, "chief", True),
        ({"chief": {"command": ["./lead"]}, "worker": {"image": "worker:1"}, "ps": {"command": ["./ps"]}}, "all_workers", False),
        ({"worker": {"image": "worker:1"}, "ps": {"command": ["./ps"]}}, "chief", False),
    ],
)
def test_tasks_poll_for_the_end_of_their_run_only_if_the_tasks_that_decide_it_can_answer(
    roles: dict[str, Any], success: str, *, can_report: bool
) -> None:
    document = {"version": 1, "name": "digits", "strategy": "parameter_server", "roles": roles, "success": success}
    document |= {"command": ["./train"]} if roles["worker"] == {} else {}
    result = plan(ClusterSpec.model_validate(document), "kubernetes", run_dir="/runs/digits")
    assert (settings(result).ending is not None, role_rules.can_report_end(result)) == (can_report, can_report)
    assert settings(result).unsupervised == ([role for role, own in roles.items() if "image" in own and "command" not in own] or None)


def test_this_machine_cannot_run_the_entrypoint_of_an_image() -> None:
    document = {"version": 1, "name": "digits", "strategy": "multi_worker_mirrored", "roles": {"worker": {}}, "image": "mine:1"}
    with pytest.raises(UsageError, match="roles worker: they run the entrypoint of the image mine:1") as refused:
        plan(ClusterSpec.model_validate(document), "local", run_dir="r", machine=MACHINE)
    assert "`command`" in refused.value.remedy
    assert "--on docker or --on kubernetes" in refused.value.remedy


def test_a_working_directory_beside_the_spec_becomes_one_of_the_code_in_a_container() -> None:
    fields: dict[str, Any] = {"roles": {"chief": {"working_dir": "src/tools"}}, "command": ["python", "a.py"], "code": "./src"}
    assert planned(**fields).tasks[0].cwd == "/home/me/src/tools"
    assert planned("docker", **fields).tasks[0].cwd == "/code/tools"
    with pytest.raises(UsageError, match="working_dir is src/tools, a directory of this machine"):
        planned("docker", **{**fields, "code": None})


def test_cores_are_shared_and_cpu_is_honoured() -> None:
    result = planned(
        strategy="parameter_server", roles={"chief": {"cpu": 4.0}, "worker": {"replicas": 2}, "ps": {}}, machine=Machine(cores=16)
    )
    threads = {task.name: task.env["TF_NUM_INTRAOP_THREADS"] for task in result.tasks}
    assert threads == {"chief": "4", "worker-0": "4", "worker-1": "4", "ps-0": "4"}
    for task in result.tasks:
        assert task.env["OMP_NUM_THREADS"] == task.env["TF_NUM_INTEROP_THREADS"] == threads[task.name]


def test_no_task_has_a_single_inter_op_thread_with_which_tensorflow_would_deadlock() -> None:
    trained = planned(strategy="parameter_server", roles=PS_ROLES, machine=Machine(cores=2))
    assert {task.env["TF_NUM_INTRAOP_THREADS"] for task in trained.tasks} == {"1"}
    assert {task.env["TF_NUM_INTEROP_THREADS"] for task in trained.tasks} == {"4"}
    own = planned(strategy="parameter_server", roles=PS_ROLES, machine=Machine(cores=2), command=["python", "train.py"])
    assert {task.env["TF_NUM_INTEROP_THREADS"] for task in own.tasks} == {"2"}


@pytest.mark.parametrize("strategy", ["single", "multi_worker_mirrored"])
def test_the_trainers_own_loop_has_one_thread_for_each_core(strategy: str) -> None:
    roles = {"worker": {"replicas": 2}} if strategy == "multi_worker_mirrored" else {"chief": {}}
    result = planned(strategy=strategy, roles=roles, machine=Machine(cores=2))
    assert {task.env["TF_NUM_INTEROP_THREADS"] for task in result.tasks} == {"1" if strategy == "multi_worker_mirrored" else "2"}


def test_gpus_are_shared_among_tasks_and_too_few_give_a_notice(golden: Golden) -> None:
    roles = {"chief": {}, "worker": {"replicas": 3, "gpus": 1}, "ps": {}}
    result = planned(strategy="parameter_server", roles=roles, machine=Machine(cores=8, gpus=("0", "1")))
    assert [task.env["CUDA_VISIBLE_DEVICES"] for task in result.tasks] == ["", "0", "1", "", ""]
    golden(*result.notices)
    assert planned(machine=MACHINE).notices == ()


def test_tasks_that_exchange_gradients_all_have_gpus_or_none() -> None:
    def visible(gpus: int, **program: Any) -> tuple[list[str], tuple[str, ...]]:
        machine = Machine(cores=8, gpus=tuple(str(i) for i in range(gpus)))
        roles = {"worker": {"replicas": 3, "gpus": 1}, "evaluator": {}}
        result = planned(strategy="multi_worker_mirrored", roles=roles, machine=machine, **program)
        return [task.env["CUDA_VISIBLE_DEVICES"] for task in result.tasks], result.notices

    assert visible(3) == (["0", "1", "2", ""], ())
    notice = "the spec asks for 3 GPUs, this machine has 2: these run without a GPU: worker-0, worker-1, worker-2"
    assert visible(2) == (["", "", "", ""], (notice,))
    # A user's program may use them in any way.
    assert visible(2, command=["python"])[0] == ["0", "1", "", ""]


def test_a_too_large_tf_config_is_refused_with_the_number_of_tasks_that_fit() -> None:
    def cluster_of(tasks: int) -> Plan:
        return planned("kubernetes", strategy="multi_worker_mirrored", roles={"worker": {"replicas": tasks}})

    with pytest.raises(LauncherError) as error:
        cluster_of(9000)
    max_tasks = int("".join(filter(str.isdigit, error.value.remedy.split("tasks")[0])))
    assert "9000 tasks" in error.value.message
    tasks = cluster_of(max_tasks).tasks
    longest = max(tasks, key=lambda task: len(str(task.tf_config["task"])))
    assert all(task.tf_config["cluster"] == longest.tf_config["cluster"] for task in tasks)  # so it is enough to measure one
    assert len("TF_CONFIG=") + len(tf_config_text(longest.tf_config)) + 1 <= ENVIRONMENT_LIMIT
    with pytest.raises(LauncherError):
        cluster_of(max_tasks + 10)


def test_a_plan_can_be_written_and_read_as_json() -> None:
    result = planned(strategy="parameter_server", roles=PS_ROLES, limits={"deadline": "1h"})
    assert from_document(json.loads(json.dumps(to_document(result)))) == result


def test_planning_changes_nothing_on_disk(tmp_path: Path) -> None:
    plan(spec(), "local", run_dir=tmp_path / "digits", spec_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []
