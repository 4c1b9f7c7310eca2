"""The planner: what a valid spec becomes on each target."""

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


def settings(made: Plan, task: int = 0) -> TrainerSettings:
    return TrainerSettings.model_validate_json(made.tasks[task].env["TRAINER_SETTINGS"])


@pytest.mark.parametrize(
    "target, chief, worker",
    [
        ("local", "127.0.0.1:2222", "127.0.0.1:2224"),
        ("docker", "chief:2222", "worker-1:2222"),
        ("kubernetes", "digits-chief-0.digits:2222", "digits-worker-1.digits:2222"),
    ],
)
def test_every_target_has_its_own_addresses(target: Target, chief: str, worker: str) -> None:
    made = planned(target, strategy="parameter_server", roles=PS_ROLES)
    where = {task.name: task.address for task in made.tasks}
    assert list(where) == ["chief", "worker-0", "worker-1", "ps-0", "ps-1", "evaluator"]
    assert (where["chief"], where["worker-1"], where["evaluator"]) == (chief, worker, "")


@pytest.mark.parametrize("target", ["local", "docker", "kubernetes"])
def test_the_chief_of_a_program_may_be_called_master_in_tf_config(target: Target) -> None:
    fields: dict[str, Any] = {"command": ["python", "train.py"], "tf_config": {"master": True}}
    made = planned(target, strategy="parameter_server", roles=PS_ROLES, **fields)
    moved = with_addresses(made, {task.name: f"{task.name}:1" for task in made.tasks if task.role != "evaluator"})
    for plan_of in (made, moved):
        assert all(list(task.tf_config["cluster"]) == ["master", "worker", "ps"] for task in plan_of.tasks)
        assert [task.tf_config["task"]["type"] for task in plan_of.tasks] == ["master", "worker", "worker", "ps", "ps", "evaluator"]
    assert moved.tasks[1].tf_config["cluster"]["master"] == ["chief:1"]


def test_the_evaluator_is_told_of_the_cluster_but_is_not_in_it() -> None:
    made = planned(strategy="parameter_server", roles=PS_ROLES)
    for task in made.tasks:
        assert set(task.tf_config["cluster"]) == {"chief", "worker", "ps"}
        assert task.tf_config["task"] == {"type": task.role, "index": task.index}
    assert made.tasks[-1].tf_config["task"] == {"type": "evaluator", "index": 0}


def test_with_addresses_changes_the_addresses_everywhere_and_nothing_else() -> None:
    made = planned(strategy="parameter_server", roles=PS_ROLES)
    held = {name: f"127.0.0.1:{40000 + index}" for index, name in enumerate(["chief", "worker-0", "worker-1", "ps-0", "ps-1"])}
    moved = with_addresses(made, held)
    assert {task.name: task.address for task in moved.tasks} == {**held, "evaluator": ""}
    cluster = {"chief": [held["chief"]], "worker": [held["worker-0"], held["worker-1"]], "ps": [held["ps-0"], held["ps-1"]]}
    assert all(task.tf_config["cluster"] == cluster for task in moved.tasks)
    assert with_addresses(moved, {task.name: task.address for task in made.tasks if task.address}) == made


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
def test_the_leader_and_its_evaluator_alone_have_the_run_directory(
    strategy: str, roles: dict[str, Any], mounts: set[str], required: tuple[str, ...]
) -> None:
    made = planned(strategy=strategy, roles=roles)
    assert {task.name for task in made.tasks if task.mounts_run_dir} == mounts
    assert made.required_tasks == required


def test_a_users_own_program_has_the_run_directory_on_every_task() -> None:
    made = planned(strategy="parameter_server", roles=PS_ROLES, command=["python", "train.py"])
    assert all(task.mounts_run_dir for task in made.tasks)


@pytest.mark.parametrize(
    "roles, success, required",
    [
        (PS_ROLES, "chief", ("chief",)),
        (PS_ROLES, "all_workers", ("chief", "worker-0", "worker-1")),
        ({"worker": {"replicas": 2}, "ps": {}}, "chief", ("worker-0",)),
        ({"worker": {"replicas": 2}, "ps": {}}, "all_workers", ("worker-0", "worker-1")),
    ],
)
def test_a_users_own_evaluator_decides_nothing(roles: dict[str, Any], success: str, required: tuple[str, ...]) -> None:
    made = planned(strategy="parameter_server", roles=roles, command=["python", "train.py"], success=success)
    assert made.required_tasks == required


def test_programs_in_containers_are_told_how_their_run_ends() -> None:
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
    made = planned(strategy="parameter_server", roles=PS_ROLES, limits={"max_restarts": 4})
    assert {task.name: task.restart.scope for task in made.tasks if task.index == 0} == {
        "chief": "alone", "worker-0": "alone", "ps-0": "all", "evaluator": "alone",
    }  # fmt: skip
    assert {task.restart.max_restarts for task in made.tasks} == {4}
    mirrored = planned(strategy="multi_worker_mirrored", roles={"chief": {}, "worker": {}})
    assert [task.restart.scope for task in mirrored.tasks] == ["all", "all"]


def test_settings_carry_the_defaults_of_the_workload_and_the_limits() -> None:
    made = planned(limits={"max_restarts": 3, "start_timeout": "90s", "grace_period": "5s", "deadline": "2h"})
    told = settings(made)
    assert told.train is not None
    assert (told.train.steps, told.train.checkpoint.every_seconds) == (2000, 30)
    assert (told.run, told.run_dir, told.scratch_dir) == ("digits", "/runs/digits", "/runs/digits/launcher/scratch")
    assert (told.max_restarts, told.start_timeout, told.spec_digest) == (3, 90, "d1")
    assert (made.start_timeout, made.grace_period, made.deadline) == (90, 5, 7200)


@pytest.mark.parametrize("gpus, replicas", [(0, 2), (4, 4)])
def test_mirrored_uses_the_chiefs_gpus_or_two_devices(gpus: int, replicas: int) -> None:
    assert settings(planned(strategy="mirrored", roles={"chief": {"gpus": gpus}})).local_replicas == replicas


def test_settings_know_whether_there_is_an_evaluator() -> None:
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


def test_without_code_local_tasks_start_where_the_spec_is() -> None:
    assert planned(command=["./run.sh"]).tasks[0].cwd == "/home/me"


def test_user_environment_may_change_ours_but_not_what_a_task_is() -> None:
    env = planned(env={"OMP_NUM_THREADS": "3", "TRAINER_SETTINGS": "{}", "PATH": "/opt/bin", "PYTHONPATH": "/lib/mine"}).tasks[0].env
    assert env["OMP_NUM_THREADS"] == "3"
    assert json.loads(env["TRAINER_SETTINGS"])["run"] == "digits"
    assert env["PATH"] == "/venv/bin:/opt/bin"
    assert env["PYTHONPATH"].split(os.pathsep)[0] == "/lib/mine"


def test_values_of_secrets_are_no_part_of_a_plan() -> None:
    secret = {"secret": "team", "key": "token"}
    roles = {"worker": {"replicas": 2, "env": {"MINE": secret, "TOKEN": "none"}}}
    made = planned("docker", strategy="multi_worker_mirrored", roles={"chief": {}, **roles}, env={"TOKEN": secret, "MINE": "chief's"})
    chief, worker, _ = made.tasks
    assert (chief.secrets, chief.env["MINE"]) == ({"TOKEN": SecretKey("team", "token")}, "chief's")
    assert (worker.secrets, worker.env["TOKEN"]) == ({"MINE": SecretKey("team", "token")}, "none")
    assert "TOKEN" not in chief.env
    assert from_document(json.loads(json.dumps(to_document(made)))) == made


def test_containers_run_the_trainer_of_our_image_and_in_another_the_parent_that_comes_with_the_run_or_the_command_alone() -> None:
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
    told = settings(planned("kubernetes"))
    assert told.scratch_dir == "/tmp/trainer"
    env = planned("docker", command=command, code="src").tasks[0].env
    assert env["PYTHONPATH"] == "/code"
    assert "OMP_NUM_THREADS" not in env


OWN_ROLES: dict[str, Any] = {
    "chief": {"env": {"LEVEL": "4", "MORE": "1"}, "args": ["--lead"]},
    "worker": {"image": "worker:1", "working_dir": "/srv", "max_restarts": 2, "restart": "exit_code"},
    "ps": {"image": "ps:1", "command": ["./ps"], "restart": "never"},
}


def test_a_role_s_own_comes_before_the_spec_s() -> None:
    made = planned("kubernetes", strategy="parameter_server", roles=OWN_ROLES, command=["python", "a.py"], env={"LEVEL": "3"})
    chief, worker, ps = made.tasks
    assert [task.image for task in made.tasks] == [None, "worker:1", "ps:1"]
    assert chief.command == ("python", "-P", "-m", "trainer", "--", "python", "a.py", "--lead")
    assert (worker.command[-3:], ps.command[-2:]) == (("--", "python", "a.py"), ("--", "./ps"))
    assert (worker.cwd, ps.cwd) == ("/srv", None)
    assert (chief.env["LEVEL"], chief.env["MORE"], worker.env["LEVEL"], "MORE" in worker.env) == ("4", "1", "3", False)
    assert [(task.restart.when, task.restart.max_restarts) for task in made.tasks] == [
        ("on_failure", 10),
        ("exit_code", 2),
        ("on_failure", 0),
    ]
    told = settings(made).restarts
    assert told is not None
    assert {role: restarts.model_dump() for role, restarts in told.items()} == {
        "worker": {"restart": "exit_code", "max_restarts": 2},
        "ps": {"restart": "on_failure", "max_restarts": 0},
    }
    assert settings(planned()).restarts is None


def test_an_image_without_a_command_runs_its_entrypoint_with_args() -> None:
    roles = {"worker": {"args": ["--steps", "5"]}, "ps": {"command": ["./ps"]}}
    made = plan(
        ClusterSpec.model_validate({"version": 1, "name": "digits", "strategy": "parameter_server", "roles": roles, "image": "mine:1"}),
        "docker",
        run_dir="/runs/digits",
    )
    worker, ps = made.tasks
    assert (worker.command, worker.is_entrypoint, worker.cwd) == (("--steps", "5"), True, None)
    assert (ps.command[-2:], ps.is_entrypoint) == (("--", "./ps"), False)
    assert from_document(json.loads(json.dumps(to_document(made)))) == made


@pytest.mark.parametrize(
    "roles, success, tells",
    [
        ({"worker": {}, "ps": {"image": "ps:1", "command": ["./ps"]}}, "chief", True),
        ({"worker": {"image": "worker:1", "command": ["./train"]}, "ps": {"image": "ps:1"}}, "chief", True),
        ({"chief": {"command": ["./lead"]}, "worker": {"image": "worker:1"}, "ps": {"command": ["./ps"]}}, "chief", True),
        ({"chief": {"command": ["./lead"]}, "worker": {"image": "worker:1"}, "ps": {"command": ["./ps"]}}, "all_workers", False),
        ({"worker": {"image": "worker:1"}, "ps": {"command": ["./ps"]}}, "chief", False),
    ],
)
def test_tasks_ask_for_the_end_of_their_run_only_where_those_that_decide_it_can_answer(
    roles: dict[str, Any], success: str, *, tells: bool
) -> None:
    document = {"version": 1, "name": "digits", "strategy": "parameter_server", "roles": roles, "success": success}
    document |= {"command": ["./train"]} if roles["worker"] == {} else {}
    made = plan(ClusterSpec.model_validate(document), "kubernetes", run_dir="/runs/digits")
    assert (settings(made).ending is not None, role_rules.can_report_end(made)) == (tells, tells)
    assert settings(made).unsupervised == ([role for role, own in roles.items() if "image" in own and "command" not in own] or None)


def test_this_machine_cannot_run_the_entrypoint_of_an_image() -> None:
    document = {"version": 1, "name": "digits", "strategy": "multi_worker_mirrored", "roles": {"worker": {}}, "image": "mine:1"}
    with pytest.raises(UsageError, match="roles worker: they run the entrypoint of the image mine:1") as refused:
        plan(ClusterSpec.model_validate(document), "local", run_dir="r", machine=MACHINE)
    assert "`command`" in refused.value.remedy
    assert "--on docker or --on kubernetes" in refused.value.remedy


def test_a_working_directory_beside_the_spec_is_one_of_the_code_in_a_container() -> None:
    own: dict[str, Any] = {"roles": {"chief": {"working_dir": "src/tools"}}, "command": ["python", "a.py"], "code": "./src"}
    assert planned(**own).tasks[0].cwd == "/home/me/src/tools"
    assert planned("docker", **own).tasks[0].cwd == "/code/tools"
    with pytest.raises(UsageError, match="working_dir is src/tools, a directory of this machine"):
        planned("docker", **{**own, "code": None})


def test_cores_are_shared_and_cpu_is_honoured() -> None:
    made = planned(
        strategy="parameter_server", roles={"chief": {"cpu": 4.0}, "worker": {"replicas": 2}, "ps": {}}, machine=Machine(cores=16)
    )
    threads = {task.name: task.env["TF_NUM_INTRAOP_THREADS"] for task in made.tasks}
    assert threads == {"chief": "4", "worker-0": "4", "worker-1": "4", "ps-0": "4"}
    for task in made.tasks:
        assert task.env["OMP_NUM_THREADS"] == task.env["TF_NUM_INTEROP_THREADS"] == threads[task.name]


def test_no_task_has_a_single_thread_between_operations_with_which_tensorflow_would_wait_for_ever() -> None:
    trained = planned(strategy="parameter_server", roles=PS_ROLES, machine=Machine(cores=2))
    assert {task.env["TF_NUM_INTRAOP_THREADS"] for task in trained.tasks} == {"1"}
    assert {task.env["TF_NUM_INTEROP_THREADS"] for task in trained.tasks} == {"4"}
    own = planned(strategy="parameter_server", roles=PS_ROLES, machine=Machine(cores=2), command=["python", "train.py"])
    assert {task.env["TF_NUM_INTEROP_THREADS"] for task in own.tasks} == {"2"}


@pytest.mark.parametrize("strategy", ["single", "multi_worker_mirrored"])
def test_the_trainers_own_loop_has_a_thread_a_core(strategy: str) -> None:
    roles = {"worker": {"replicas": 2}} if strategy == "multi_worker_mirrored" else {"chief": {}}
    made = planned(strategy=strategy, roles=roles, machine=Machine(cores=2))
    assert {task.env["TF_NUM_INTEROP_THREADS"] for task in made.tasks} == {"1" if strategy == "multi_worker_mirrored" else "2"}


def test_gpus_are_shared_out_and_a_lack_of_them_is_said(golden: Golden) -> None:
    roles = {"chief": {}, "worker": {"replicas": 3, "gpus": 1}, "ps": {}}
    made = planned(strategy="parameter_server", roles=roles, machine=Machine(cores=8, gpus=("0", "1")))
    assert [task.env["CUDA_VISIBLE_DEVICES"] for task in made.tasks] == ["", "0", "1", "", ""]
    golden(*made.notices)
    assert planned(machine=MACHINE).notices == ()


def test_tasks_that_exchange_gradients_all_have_gpus_or_none() -> None:
    def visible(gpus: int, **program: Any) -> tuple[list[str], tuple[str, ...]]:
        machine = Machine(cores=8, gpus=tuple(str(i) for i in range(gpus)))
        roles = {"worker": {"replicas": 3, "gpus": 1}, "evaluator": {}}
        made = planned(strategy="multi_worker_mirrored", roles=roles, machine=machine, **program)
        return [task.env["CUDA_VISIBLE_DEVICES"] for task in made.tasks], made.notices

    assert visible(3) == (["0", "1", "2", ""], ())
    notice = "the spec asks for 3 GPUs, this machine has 2: these run without a GPU: worker-0, worker-1, worker-2"
    assert visible(2) == (["", "", "", ""], (notice,))
    # A program of one's own may do anything with them.
    assert visible(2, command=["python"])[0] == ["0", "1", "", ""]


def test_a_tf_config_that_cannot_fit_is_refused_with_the_size_that_would() -> None:
    def cluster_of(tasks: int) -> Plan:
        return planned("kubernetes", strategy="multi_worker_mirrored", roles={"worker": {"replicas": tasks}})

    with pytest.raises(LauncherError) as error:
        cluster_of(9000)
    most = int("".join(filter(str.isdigit, error.value.remedy.split("tasks")[0])))
    assert "9000 tasks" in error.value.message
    tasks = cluster_of(most).tasks
    longest = max(tasks, key=lambda task: len(str(task.tf_config["task"])))
    assert all(task.tf_config["cluster"] == longest.tf_config["cluster"] for task in tasks)  # so to size one of them is enough
    assert len("TF_CONFIG=") + len(tf_config_text(longest.tf_config)) + 1 <= ENVIRONMENT_LIMIT
    with pytest.raises(LauncherError):
        cluster_of(most + 10)


def test_a_plan_survives_being_a_json_document() -> None:
    made = planned(strategy="parameter_server", roles=PS_ROLES, limits={"deadline": "1h"})
    assert from_document(json.loads(json.dumps(to_document(made)))) == made


def test_planning_changes_nothing_on_disk(tmp_path: Path) -> None:
    plan(spec(), "local", run_dir=tmp_path / "digits", spec_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []
