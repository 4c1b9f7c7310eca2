"""The Compose file of a plan: the configuration and the rights of each service, as Compose reads them."""

import base64
import json
import textwrap
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher import images
from launcher.errors import UsageError
from launcher.plan import container_paths
from launcher.plan.spec_file import plan_file
from launcher.render import compose, parent_file
from launcher.render.targets import RenderSource
from tests.golden_messages import Golden

HEAD = "version: 1\nname: digits\n"
CLUSTER = "strategy: parameter_server\nroles: {chief: {}, ps: {replicas: 1}, worker: {replicas: 2}, evaluator: {}}\n"
TRAIN = "train: {workload: mnist_mlp}\n"

Render = Callable[..., dict[str, Any]]


@pytest.fixture
def text(tmp_path: Path) -> Callable[[str], str]:
    """Return a function that renders a spec as the text of a Compose file beside it."""

    def render(spec: str) -> str:
        file = tmp_path / "digits.yaml"
        file.write_text(HEAD + textwrap.dedent(spec))
        parsed, plan = plan_file(file, [], "docker", tmp_path / "runs")
        return compose.render(RenderSource(parsed, plan, tmp_path, "launcher render digits.yaml --to compose"))

    return render


@pytest.fixture
def rendered(text: Callable[[str], str]) -> Render:
    """Return a function that renders a spec and returns the document that Compose reads, with merge keys and anchors resolved."""

    def render(spec: str = CLUSTER + TRAIN) -> dict[str, Any]:
        document = yaml.load(text(spec), Loader=yaml.CSafeLoader)
        assert isinstance(document, dict)
        return document

    return render


def test_each_task_and_tensorboard_has_one_service(rendered: Render) -> None:
    services = rendered()["services"]
    assert list(services) == ["chief", "worker-0", "worker-1", "ps-0", "evaluator", "tensorboard"]
    assert {service["hostname"] for service in services.values()} == set(services)


def test_each_task_has_its_own_explicit_tf_config(rendered: Render) -> None:
    tf_config = json.loads(rendered()["services"]["worker-1"]["environment"]["TF_CONFIG"])
    assert tf_config == {
        "cluster": {"chief": ["chief:2222"], "worker": ["worker-0:2222", "worker-1:2222"], "ps": ["ps-0:2222"]},
        "task": {"type": "worker", "index": 1},
    }


def test_no_change_of_a_spec_changes_the_volume_that_holds_its_checkpoints(rendered: Render) -> None:
    """Newer Compose offers to delete a volume whose definition has changed."""
    other = CLUSTER + "train: {workload: mnist_mlp, steps: 5}\nlimits: {grace_period: 5m}\n"
    assert rendered()["volumes"] == rendered(other)["volumes"]


def test_only_services_that_need_the_run_directory_mount_it(rendered: Render) -> None:
    services = rendered()["services"]
    mounted = {name: service["volumes"][0] for name, service in services.items() if "volumes" in service}
    assert set(mounted) == {"chief", "evaluator", "tensorboard"}
    assert {name for name, volume in mounted.items() if volume.get("read_only")} == {"tensorboard"}
    assert {volume["target"] for volume in mounted.values()} == {container_paths.CONTAINER_RUNS}
    assert services["chief"]["environment"]["RUN_DIR"] == "/runs/digits"


def test_an_image_of_ones_own_sets_its_working_directory_itself(rendered: Render) -> None:
    """For example, an image that has the code. In our own image the directory for code is empty and read-only."""
    assert "working_dir" not in rendered("image: mine:1\ncommand: [python, train.py]\n")["services"]["chief"]
    assert rendered("command: [python, train.py]\n")["services"]["chief"]["working_dir"] == "/tmp"


def test_an_image_of_ones_own_gets_the_parent_of_a_command_in_a_variable(rendered: Render, text: Callable[[str], str]) -> None:
    own = "image: mine:1\ncommand: [python, train.py]\nlimits: {max_restarts: 7}\n"
    services = rendered(own)["services"]
    assert services["chief"]["command"][:1] + services["chief"]["command"][-3:] == ["python3", "--", "python", "train.py"]
    assert zlib.decompress(base64.b64decode(services["chief"]["environment"]["TRAINER_PARENT"])).decode() == parent_file.text()
    assert services["chief"]["healthcheck"]["test"] == ["CMD", *services["chief"]["command"][:-3], "--health"]
    assert services["chief"]["restart"] == "on-failure:3"
    assert not [name for name, service in services.items() if name != "chief" and "TRAINER_PARENT" in service.get("environment", {})]
    assert text(own).count(parent_file.packed()) == 1
    chief = rendered(own + "supervise: false\n")["services"]["chief"]
    assert (chief["command"], chief["restart"], "healthcheck" in chief) == (["python", "train.py"], "on-failure:7", False)
    assert "TRAINER_PARENT" not in chief["environment"]


ROLES = """\
    strategy: parameter_server
    roles:
      chief: {command: [python, lead.py]}
      worker: {replicas: 2, image: "worker:1", env: {LEVEL: "3"}, max_restarts: 2}
      ps: {replicas: 2, image: "ps:1", args: [--serve], restart: exit_code}
    """


def test_the_fields_of_a_role_are_only_in_its_services_and_are_written_once(rendered: Render, text: Callable[[str], str]) -> None:
    own = ROLES.replace("worker: {", "worker: {command: [python, train.py], ")
    services = rendered(own)["services"]
    assert [service["image"] for service in services.values()][1:] == [
        f"${{TRAINER_IMAGE:-{images.DEFAULT_IMAGE}}}",
        *["worker:1"] * 2,
        *["ps:1"] * 2,
        f"${{TRAINER_IMAGE:-{images.DEFAULT_IMAGE}}}",
    ]
    assert services["chief"]["command"] == ["python", "-P", "-m", "trainer", "--", "python", "lead.py"]
    assert services["chief"]["healthcheck"]["test"] == ["CMD", "python", "-P", "-m", "trainer", "--health"]
    assert services["worker-1"]["command"][-3:] == ["--", "python", "train.py"]
    assert (services["worker-1"]["restart"], services["worker-1"]["environment"]["LEVEL"]) == ("on-failure:2", "3")
    with_parent = [name for name, service in services.items() if "TRAINER_PARENT" in service.get("environment", {})]
    assert with_parent == ["worker-0", "worker-1"]
    assert text(own).count(parent_file.packed()) == 1
    assert text(own).count("train.py") == 1


def test_an_entrypoint_gets_its_args_and_nothing_else(rendered: Render, text: Callable[[str], str]) -> None:
    services = rendered(ROLES)["services"]
    assert services["ps-0"]["command"] == ["--serve"]
    assert not {"command", "entrypoint", "healthcheck", "working_dir"} & set(services["worker-0"])
    assert "entrypoint" not in services["ps-0"]
    assert (services["worker-0"]["restart"], services["ps-0"]["restart"]) == ("on-failure:2", "no")
    assert "restart: exit_code of ps holds under `launcher up --on docker`" in text(ROLES)
    assert (
        rendered("roles: {chief: {}, evaluator: {restart: always}}\nimage: mine:1\n")["services"]["evaluator"]["restart"]
        == "unless-stopped"
    )


def test_tensorflow_s_port_is_on_an_internal_network_and_tensorboard_on_another(rendered: Render) -> None:
    document = rendered("tensorboard: {port: 7007}\n" + CLUSTER + TRAIN)
    cluster = document["networks"]["cluster"]
    assert cluster["internal"] is True
    # Internal keeps other networks out; without an address there the host stays out too.
    assert cluster["driver_opts"] == {"com.docker.network.bridge.inhibit_ipv4": "true"}
    networks = {name: service["networks"] for name, service in document["services"].items()}
    assert networks.pop("tensorboard") == ["tensorboard"]
    assert set(map(tuple, networks.values())) == {("cluster",)}
    published = {name: service["ports"] for name, service in document["services"].items() if "ports" in service}
    assert published == {"tensorboard": [{"host_ip": "127.0.0.1", "published": "7007", "target": 6006, "protocol": "tcp"}]}


def test_a_download_of_data_allows_connections_out_and_none_in(rendered: Render, text: Callable[[str], str]) -> None:
    document = rendered("train: {workload: mnist_mlp, data: download}\n")
    chief = document["services"]["chief"]
    assert chief["networks"] == ["cluster", "egress"]
    assert "ports" not in chief
    # The host is on that network, and the file says so.
    assert "programs on the host can reach TensorFlow's port" in text("train: {workload: mnist_mlp, data: download}\n")


def test_every_container_has_as_few_rights_as_possible(rendered: Render) -> None:
    for service in rendered()["services"].values():
        assert service["user"] == f"{images.USER}:{images.USER}"
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["init"] is True
        assert any(mount.startswith("/tmp") for mount in service["tmpfs"])


def test_tasks_with_security_image_have_the_rights_of_their_image(rendered: Render) -> None:
    services = rendered(ROLES + "security: image\n")["services"]
    rights = {"user", "read_only", "cap_drop", "tmpfs"}
    for name, service in services.items():
        is_task = name not in {"tensorboard", "prepare-volume"}
        assert rights & set(service) == (set() if is_task else rights)
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "HOME" not in service.get("environment", {}) or not is_task
    assert services["prepare-volume"]["command"] == ["chmod", "1777", "/runs"]
    assert services["tensorboard"]["user"] == f"{images.USER}:{images.USER}"


def test_limits_become_limits_of_the_container_and_threads_of_tensorflow(rendered: Render) -> None:
    service = rendered("roles: {chief: {cpu: 1500m, memory: 1.5Gi}}\n" + TRAIN)["services"]["chief"]
    assert (service["cpus"], service["mem_limit"], service["memswap_limit"]) == (1.5, "1536m", "1536m")
    assert service["environment"]["TF_NUM_INTRAOP_THREADS"] == "2"
    assert "cpus" not in rendered(TRAIN)["services"]["chief"]


def test_connections_to_a_lost_address_are_dropped(rendered: Render) -> None:
    services = rendered()["services"]
    assert all(services[name]["sysctls"] == {"net.ipv4.tcp_retries2": 6} for name in services if name != "tensorboard")


def test_one_task_gets_gpus_by_count_and_several_tasks_by_number(rendered: Render) -> None:
    def devices(roles: str, strategy: str) -> dict[str, Any]:
        services = rendered(f"strategy: {strategy}\nroles: {roles}\n" + TRAIN)["services"]
        return {
            name: service["deploy"]["resources"]["reservations"]["devices"][0] for name, service in services.items() if "deploy" in service
        }

    one_task = devices("{chief: {gpus: 4}}", "mirrored")
    assert one_task == {"chief": {"driver": "nvidia", "capabilities": ["gpu"], "count": 4}}
    three_tasks = devices("{worker: {replicas: 3, gpus: 2}}", "multi_worker_mirrored")
    assert {name: device["device_ids"] for name, device in three_tasks.items()} == {
        "worker-0": ["0", "1"],
        "worker-1": ["2", "3"],
        "worker-2": ["4", "5"],
    }
    assert rendered("roles: {chief: {gpus: 1}}\n" + TRAIN)["services"]["chief"]["image"] == f"${{TRAINER_IMAGE:-{images.GPU_IMAGE}}}"


def test_the_engine_restarts_a_lost_trainer_a_limited_number_of_times(rendered: Render) -> None:
    def policy(limits: str) -> str:
        return str(rendered(TRAIN + limits)["services"]["chief"]["restart"])

    assert policy("") == "on-failure:3"
    assert policy("limits: {max_restarts: 1}\n") == "on-failure:1"
    assert policy("limits: {max_restarts: 0}\n") == "no"
    # Only the engine restarts a program that has no parent.
    assert rendered("image: mine:1\ncommand: [python, train.py]\nsupervise: false\n")["services"]["chief"]["restart"] == "on-failure:10"


def test_a_stop_leaves_time_for_a_checkpoint_and_servers_outlive_the_chief(rendered: Render) -> None:
    services = rendered("limits: {grace_period: 90s}\n" + CLUSTER + TRAIN)["services"]
    assert services["chief"]["stop_grace_period"] == services["evaluator"]["stop_grace_period"] == "90s"
    assert services["ps-0"]["stop_grace_period"] == services["worker-1"]["stop_grace_period"] == "100s"


def test_code_and_data_are_mounted_read_only_by_paths_relative_to_the_file(rendered: Render, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "mnist").mkdir()
    service = rendered("code: ./src\ntrain: {workload: mnist_mlp, data: ./mnist}\n")["services"]["chief"]
    binds = {volume["target"]: volume for volume in service["volumes"] if volume["type"] == "bind"}
    assert {target: bind["source"] for target, bind in binds.items()} == {"/code": "./src", "/data": "./mnist"}
    assert all(bind["read_only"] for bind in binds.values())
    assert service["environment"]["PYTHONPATH"] == service["working_dir"] == "/code"
    assert json.loads(service["environment"]["TRAINER_SETTINGS"])["train"]["data"] == "/data"


def test_tensorboard_needs_no_tensorflow_if_the_image_has_the_trainer(rendered: Render) -> None:
    for program in (TRAIN, "command: [python, train.py]\n", "image: mine:1\n" + TRAIN):
        assert rendered(program)["services"]["tensorboard"]["command"][:4] == ["python", "-P", "-m", "trainer.tensorboard"]


def test_tensorboard_has_its_own_image_and_limits_or_is_left_out(rendered: Render, text: Callable[[str], str]) -> None:
    board = rendered(TRAIN + "tensorboard: {image: 'tensorflow/tensorflow:2.19.0', cpu: 0.5, memory: 1Gi, port: 7007}\n")["services"][
        "tensorboard"
    ]
    assert (board["image"], board["command"][:3]) == ("tensorflow/tensorflow:2.19.0", ["python", "-m", "tensorboard.main"])
    assert (board["cpus"], board["mem_limit"], board["memswap_limit"], board["ports"][0]["published"]) == (0.5, "1g", "1g", "7007")
    off = TRAIN + "tensorboard: false\n"
    document = rendered(off)
    assert list(document["services"]) == ["chief"]
    assert list(document["networks"]) == ["cluster"]
    assert list(document["volumes"]) == ["run"]
    assert "TensorBoard" not in text(off)


def test_the_volume_of_an_image_of_ones_own_is_made_writable_first(rendered: Render) -> None:
    services = rendered("image: mine:1\ncommand: [python, train.py]\nsupervise: false\nstorage: {}\n")["services"]
    assert services["prepare-volume"]["command"] == ["chown", "1000:1000", "/runs"]
    assert services["chief"]["depends_on"] == {"prepare-volume": {"condition": "service_completed_successfully"}}
    assert services["chief"]["command"] == ["python", "train.py"]
    # The image need not have the trainer, so nothing of the trainer is called.
    assert "healthcheck" not in services["chief"]
    assert services["tensorboard"]["command"][:3] == ["python", "-m", "tensorboard.main"]


def test_a_program_in_an_image_of_ones_own_has_a_volume_only_if_the_spec_has_storage(rendered: Render, text: Callable[[str], str]) -> None:
    own = "image: mine:1\ncommand: [python, train.py]\n"
    document = rendered(own)
    assert list(document["services"]) == ["chief"]
    assert "volumes" not in document
    assert list(document["networks"]) == ["cluster"]
    assert "volumes" not in document["services"]["chief"]
    assert "RUN_DIR" not in document["services"]["chief"]["environment"]
    assert "down -v" not in text(own)
    assert "TensorBoard" not in text(own)
    assert rendered(own + "storage: {}\n")["services"]["chief"]["environment"]["RUN_DIR"] == "/runs/digits"


def test_the_header_promises_checkpoints_only_of_training(text: Callable[[str], str], golden: Golden) -> None:
    for spec in (
        TRAIN,
        "command: [python, -c, pass]\n",
        "image: mine:1\ncommand: [python]\n",
        "image: mine:1\ncommand: [python]\nstorage: {}\n",
    ):
        golden(*(line for line in text(spec).splitlines() if line.startswith(("#   docker", "# Note: size", "# Note: storage"))))


def test_the_value_of_a_secret_comes_from_the_environment_of_compose(
    rendered: Render, text: Callable[[str], str], monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOKEN", "hunter2")
    one_role = "roles: {chief: {}, worker: {env: {TOKEN: {secret: team, key: token}}}}\nstrategy: multi_worker_mirrored\n" + TRAIN
    services = rendered(one_role)["services"]
    assert services["worker-0"]["environment"]["TOKEN"] is None
    assert "TOKEN" not in services["chief"]["environment"]
    all_roles = "env: {TOKEN: {secret: team, key: token}}\n" + TRAIN
    assert rendered(all_roles)["services"]["chief"]["environment"]["TOKEN"] is None
    assert "the environment that `docker compose up` is called in has to have TOKEN" in text(all_roles)
    (tmp_path / "team.env").write_text("TOKEN=hunter2\n")
    assert "has to have TOKEN, or team.env as `docker compose --env-file` reads it" in text(all_roles + "env_file: team.env\n")
    assert "hunter2" not in text(one_role) + text(all_roles) + text(all_roles + "env_file: team.env\n")


def test_dollars_reach_the_program_unchanged(rendered: Render) -> None:
    service = rendered("command: [sh, -c, 'echo $HOME']\nenv: {PRICE: $5}\n")["services"]["chief"]
    assert service["command"][-1] == "echo $$HOME"
    assert service["environment"]["PRICE"] == "$$5"


def test_a_host_that_is_no_address_is_refused(text: Callable[[str], str]) -> None:
    assert yaml.safe_load(text("tensorboard: {host: localhost}\n" + TRAIN))["services"]["tensorboard"]["ports"][0]["host_ip"] == "127.0.0.1"
    with pytest.raises(UsageError, match=r"tensorboard\.host is 'board\.example'"):
        text("tensorboard: {host: board.example}\n" + TRAIN)


def test_the_file_notes_the_fields_that_compose_ignores(text: Callable[[str], str]) -> None:
    assert "limits.deadline holds under `launcher up" in text(TRAIN + "limits: {deadline: 1h}\n")
    assert "Note:" not in text(TRAIN)


def test_a_line_break_in_a_title_does_not_end_its_comment(tmp_path: Path) -> None:
    (tmp_path / "digits.yaml").write_text(HEAD + TRAIN)
    spec, plan = plan_file(tmp_path / "digits.yaml", [], "docker", tmp_path)
    for line_break in ("\n", "\r\n", "\x85", "\u2028", "\x0b"):
        compose_file = compose.render(RenderSource(spec, plan, tmp_path, f"one{line_break}services: {{}}"))
        assert list(yaml.safe_load(compose_file)["services"]) == ["chief", "tensorboard"]


def test_fields_that_services_share_are_written_once(text: Callable[[str], str]) -> None:
    compose_file = text(CLUSTER + TRAIN)
    assert compose_file.count("TRAINER_SETTINGS:") == compose_file.count("read_only: true\n  cap_drop") == 1
    assert "    <<: *task\n" in compose_file
