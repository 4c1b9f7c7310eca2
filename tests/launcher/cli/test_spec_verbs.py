"""The verbs that run nothing: init, validate, plan, render and schema."""

import json
import sys
from pathlib import Path
from typing import get_args

import pytest
import yaml

from launcher.cli.main import run
from launcher.cli.run_lookup import command
from launcher.spec.schema import SCHEMA_FILE
from tests.golden_messages import Golden
from tests.launcher.cli.conftest import Cli, Spec
from trainer.strategies import Strategy
from trainer.workloads.catalog import CATALOG


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LAUNCHER_RUNS", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    "strategy, workload",
    [
        *((strategy, name) for name, entry in CATALOG.items() for strategy in entry.strategies),
        *((strategy, "my_code.models:Net") for strategy in get_args(Strategy)),
    ],
)
def test_a_spec_that_init_writes_is_valid(strategy: str, workload: str, capsys: pytest.CaptureFixture[str], here: Path) -> None:
    (here / "my_code").mkdir()
    (here / "my_code" / "models.py").write_text("class Net: ...")
    assert run(["init", "--strategy", strategy, "--workload", workload]) == 0
    assert "launcher up cluster.yaml" in capsys.readouterr().out
    assert run(["validate", "cluster.yaml"]) == 0
    assert f", {strategy}, {workload}" in capsys.readouterr().out
    first, *_ = (here / "cluster.yaml").read_text().splitlines()
    assert first == f"# yaml-language-server: $schema={SCHEMA_FILE}"


def test_init_writes_a_valid_spec_for_a_users_program(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    (here / "train.py").write_text("")
    assert run(["init", "--command", "--strategy", "multi_worker_mirrored"]) == 0
    assert run(["validate", "cluster.yaml"]) == 0
    assert "multi_worker_mirrored, python" in capsys.readouterr().out


def test_init_and_render_write_json(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    assert run(["init", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == {"file": "cluster.yaml", "name": "mnist-mlp", "strategy": "parameter_server", "workload": "mnist_mlp"}
    assert run(["render", "cluster.yaml", "--to", "compose", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["to"], yaml.safe_load(report["text"])["name"]) == ("compose", "mnist-mlp")
    assert run(["render", "cluster.yaml", "--to", "kubernetes", "-o", "k8s", "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert sorted(files) == sorted(f"k8s/{path.name}" for path in (here / "k8s").iterdir())


def test_init_overwrites_only_with_force(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "cluster.yaml").write_text("mine")
    assert run(["init"]) == 2
    assert "--force" in capsys.readouterr().err
    assert (here / "cluster.yaml").read_text() == "mine"
    assert run(["init", "--force", "--name", "other"]) == 0
    assert "name: other" in (here / "cluster.yaml").read_text()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--strategy", "paramter_server"], "parameter_server"),
        (["--workload", "mnits"], "mnist"),
        (["--name", "My Run"], "My Run"),
        (["no/such/dir/x.yaml"], "mkdir -p no/such/dir"),
        (["no such/x.yaml"], "mkdir -p 'no such'"),
        (["."], ". is a directory"),
        ([".", "--force"], ". is a directory"),
        (["/dev/null/x.yaml"], "/dev/null/x.yaml cannot be written: /dev/null is not a directory"),
        (["--workload", "my net"], "mnist_mlp"),
        (["--workload", "life"], "life does not run with strategy parameter_server"),
        (["--workload", "my net"], "package.module:name"),
        (["--command", "--workload", "cifar10"], "--workload"),
        (["--workload", "my net:Net"], "is not package.module:name; expected"),
    ],
)
def test_init_refuses_arguments_that_cannot_be_valid(
    arguments: list[str], message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert list(here.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_init_refuses_a_file_that_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "/proc/x.yaml"]) == 2
    error = capsys.readouterr().err
    assert "/proc/x.yaml cannot be written" in error
    assert "mkdir" not in error


def test_the_next_command_can_be_pasted(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    del here
    assert run(["init", "my cluster.yaml"]) == 0
    assert "`launcher up 'my cluster.yaml'`" in capsys.readouterr().out
    assert command(Path("my runs"), "up", "a b.yaml") == "launcher up 'a b.yaml' --runs 'my runs'"


def test_validate_reports_every_file_and_every_problem(here: Path, spec: Spec, capsys: pytest.CaptureFixture[str]) -> None:
    good = spec("steps")
    (here / "one.yaml").write_text("version: 1\nname: x\nstrategi: single\ncommand: [a]\nenvv: {}\n")
    assert run(["validate", good, "one.yaml", "missing.yaml"]) == 2
    output = capsys.readouterr()
    assert output.out.startswith("toy.yaml: ok: 1 task (1 chief), single, python ")
    for location in ("one.yaml:3:1", "one.yaml:5:1", "missing.yaml:1:1"):
        assert location in output.err
    assert "error: 3 problems" in output.err
    assert run(["validate", good, "one.yaml", "--json"]) == 2
    output = capsys.readouterr()
    assert json.loads(output.out)["tasks"] == {"chief": 1}
    assert [problem["line"] for problem in json.loads(output.err)["problems"]] == [3, 5]


def test_validate_notes_that_a_run_has_no_volume(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "version: 1\nname: own\nimage: mine:1\ncommand: [python, train.py]\n"
    (here / "own.yaml").write_text(text)
    (here / "asks.yaml").write_text(text + "storage: {}\n")
    assert run(["validate", "own.yaml", "asks.yaml"]) == 0
    assert capsys.readouterr().out.count("notice: own.yaml: in containers the run has no volume") == 1
    assert run(["validate", "own.yaml", "asks.yaml", "--json"]) == 0
    first, second = (json.loads(line)["notices"] for line in capsys.readouterr().out.splitlines())
    assert (len(first), second) == (1, [])


def test_validate_counts_tasks(here: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    (here / "ps.yaml").write_text(
        "version: 1\nname: m\nstrategy: parameter_server\nroles: {chief: {}, ps: {}, worker: {replicas: 2}}\ntrain: {workload: mnist_mlp}\n"
    )
    assert run(["validate", "ps.yaml"]) == 0
    golden(capsys.readouterr().out.strip())
    assert run(["validate", "ps.yaml", "--set", "roles.worker.replicas=5"]) == 0
    assert "5 workers" in capsys.readouterr().out


def test_plan_shows_every_task(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "m.yaml").write_text(
        "version: 1\nname: m\nstrategy: multi_worker_mirrored\ntrain: {workload: mnist_mlp}\n"
        "roles: {chief: {}, worker: {replicas: 2, cpu: 0.5, memory: 1Gi}}\n"
    )
    assert run(["plan", "m.yaml"]) == 0
    table = capsys.readouterr().out
    row = next(line for line in table.splitlines() if line.startswith("worker-1"))
    assert row.split()[1:5] == ["worker", row.split()[2], "0.5", "1"]
    assert f"run directory {Path('runs', 'm')}" in table

    assert run(["plan", "m.yaml", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [task["name"] for task in plan["tasks"]] == ["chief", "worker-0", "worker-1"]
    assert plan["decisive"] == ["chief"]
    assert plan["graces"] == {"chief": 30.0, "worker": 30.0, "ps": 0.0, "evaluator": 600.0}
    assert run(["plan", "m.yaml", "--task", "worker-1"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["tf_config"]["task"] == {"type": "worker", "index": 1}
    assert shown["tf_config"]["cluster"] == plan["tasks"][0]["tf_config"]["cluster"]
    assert shown["env"]["TRAINER_SETTINGS"]["train"]["workload"] == "mnist_mlp"

    assert run(["plan", "m.yaml", "--task", "worker-7"]) == 2
    assert "worker-0" in capsys.readouterr().err

    assert run(["plan", "m.yaml", "--runs", "old[/b]"]) == 0
    assert f"run directory {Path('old[', 'b]', 'm')}" in capsys.readouterr().out


def test_plan_shows_the_first_line_of_a_script(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "s.yaml").write_text(
        "version: 1\nname: s\nimage: mine:1\ncommand:\n  - sh\n  - -c\n  - |\n    set -e\n    date\n    python train.py\n"
    )
    assert run(["plan", "s.yaml", "--on", "kubernetes"]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("chief")]
    assert row.rstrip().endswith("sh -c 'set -e ...' (3 lines)")


def test_schema_is_a_json_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema"]) == 0
    assert "strategy" in json.loads(capsys.readouterr().out)["properties"]


def test_render_prints_the_file_or_writes_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "try.yaml").write_text("version: 1\nname: try\ntrain: {workload: mnist_mlp}\n")
    render = ["render", "try.yaml", "--to", "compose", "--set", "train.steps=7"]
    assert run(render) == 0
    printed = capsys.readouterr().out
    assert '"steps":7' in printed
    assert run([*render, "-o", "compose.yaml"]) == 0
    assert capsys.readouterr().out == ""
    assert (here / "compose.yaml").read_text() == printed


def test_render_replaces_only_a_file_that_it_has_written(here: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    spec = "version: 1\nname: try\ncommand: [python, x.py]\nenv: {TOKEN: {secret: hub, key: token}}\nenv_file: empty.env\n"
    (here / "try.yaml").write_text(f"# Made by: launcher render \n{spec}")
    (here / "empty.env").touch()
    (here / "compose.yaml").write_text("services: {}\n")
    (here / "link.yaml").symlink_to("try.yaml")
    (here / "directory").mkdir()
    before = {path: path.read_bytes() for path in here.iterdir() if path.is_file()}
    for output in ("try.yaml", "link.yaml", "empty.env", "compose.yaml", "directory"):
        assert run(["render", "try.yaml", "--to", "compose", "-o", output]) == 2
        golden(capsys.readouterr().err.strip())
    assert {path: path.read_bytes() for path in here.iterdir() if path.is_file()} == before
    (here / "made.yaml").touch()
    for name in ("first", "second"):
        assert run(["render", "try.yaml", "--to", "compose", "-o", "made.yaml", "--set", f"name={name}"]) == 0
        assert yaml.safe_load((here / "made.yaml").read_text())["name"] == name


@pytest.mark.parametrize("resources, code", [("resources: [../other.yaml, ", 0), ("resources: # [", 2), ("resources: [1] # [", 2)])
def test_a_rendered_kustomization_that_was_edited_deletes_nothing_elsewhere(resources: str, code: int, here: Path) -> None:
    (here / "try.yaml").write_text("version: 1\nname: try\ncommand: [python, x.py]\nimage: mine:1\n")
    render = ["render", "try.yaml", "--to", "kubernetes", "-o", "k8s"]
    assert run(render) == 0
    kustomization = here / "k8s" / "kustomization.yaml"
    (here / "other.yaml").write_text((here / "k8s" / "job.yaml").read_text())
    kustomization.write_text(kustomization.read_text().replace("resources: [", resources))
    assert run(render) == code
    assert (here / "other.yaml").exists()


def test_render_writes_to_a_pipe(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "try.yaml").write_text("version: 1\nname: try\ncommand: [python, x.py]\n")
    printed = cli("render", "try.yaml", "--to", "compose", "-o", "/dev/stdout")
    assert (printed.returncode, yaml.safe_load(printed.stdout)["name"]) == (0, "try")


def test_a_value_set_for_env_is_in_no_comment_and_only_the_owner_can_read_it(here: Path) -> None:
    (here / "try.yaml").write_text("version: 1\nname: try\ntrain: {workload: mnist_mlp}\n")
    assert run(["render", "try.yaml", "--to", "compose", "-o", "compose.yaml"]) == 0  # the next one replaces it
    for target, output in (("compose", "compose.yaml"), ("kubernetes", "k8s")):
        assert run(["render", "try.yaml", "--to", target, "--set", "env.TOKEN=s3cret", "--set", "train.steps=7", "-o", output]) == 0
        files = [path for path in (here / output, *here.glob(f"{output}/*")) if path.is_file()]
        lines = [line for path in files for line in path.read_text().splitlines()]
        comments = [line for line in lines if line.startswith("#") and "--set" in line]
        assert comments
        assert all(line.endswith(f"--to {target} --set env.TOKEN=... --set train.steps=7") for line in comments)
        assert any("s3cret" in line for line in lines)
        assert not any("s3cret" in line for line in lines if line.startswith("#"))
        assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert run(["render", "try.yaml", "--to", "compose", "-o", "open.yaml"]) == 0
    assert (here / "open.yaml").stat().st_mode & 0o044


@pytest.mark.parametrize(
    "override",
    [
        "roles.chief={cpu: 1, env: {TOKEN: s3cret}}",
        'roles={chief: {"env": {TOKEN: s3cret}}}',
        "sidecars=[{name: proxy, image: proxy, env: {TOKEN: s3cret}}]",
        "roles.chief={&a env: {TOKEN: s3cret}}",
        "roles.chief={!!str env: {TOKEN: s3cret}}",
        "kubernetes.overrides.chief={metadata: {name: &a env}, spec: {containers: [{name: trainer, *a : [{name: TOKEN, value: s3cret}]}]}}",
        "roles.chief. env ={TOKEN: s3cret}",
        "kubernetes.overrides.chief={spec: {containers: [{name: trainer, env: [{name: TOKEN, value: s3cret}]}]}}",
    ],
)
def test_a_value_that_contains_an_env_is_in_no_comment(override: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "try.yaml").write_text("version: 1\nname: try\ntrain: {workload: mnist_mlp}\n")
    assert run(["render", "try.yaml", "--to", "kubernetes", "--set", override, "--set", "train.steps=7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("s3cret" in line for line in lines)
    [comment] = [line for line in lines if line.startswith("#") and "--set" in line]
    assert "s3cret" not in comment
    assert comment.endswith("--set train.steps=7")
    assert override.partition("=")[0] in comment


@pytest.mark.parametrize("end", ["\n", "\r", "\x85", "\u2028"])
def test_a_set_value_cannot_end_the_comment_that_shows_it(end: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "try.yaml").write_text("version: 1\nname: try\ncommand: [python, train.py]\n")
    for target in ("compose", "kubernetes"):
        assert run(["render", "try.yaml", "--to", target, "--set", f'command=[python, "train.py{end}evil: true"]']) == 0
        printed = capsys.readouterr().out
        assert not any(line.startswith("evil") for line in printed.splitlines())
        assert all("evil" not in document for document in yaml.load_all(printed, Loader=yaml.CSafeLoader))


def test_render_to_an_unknown_target_names_the_known_ones(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "try.yaml").write_text("version: 1\nname: try\ntrain: {workload: mnist_mlp}\n")
    assert run(["render", "try.yaml", "--to", "swarm"]) == 2
    assert "compose" in capsys.readouterr().err


@pytest.mark.parametrize(
    "output, message",
    [
        ("no/such/x.yaml", "mkdir -p no/such"),
        (".", "e.g. compose.yaml"),
        ("try.yaml/x.yaml", "try.yaml is not a directory"),
    ],
)
def test_render_refuses_a_file_that_cannot_be_written_as_init_does(
    output: str, message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "try.yaml").write_text("version: 1\nname: try\ntrain: {workload: mnist_mlp}\n")
    for arguments in (["render", "try.yaml", "--to", "compose", "-o", output], ["init", output]):
        assert run(arguments) == 2
        assert message.replace("compose", "cluster" if arguments[0] == "init" else "compose") in capsys.readouterr().err


def test_plan_shows_the_names_of_tasks_on_kubernetes(spec: Spec, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", spec("steps"), "--on", "kubernetes", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert [task["address"] for task in planned["tasks"]] == ["toy-chief-0.toy:2222"]
    assert planned["run_dir"] == "/runs/toy"


def test_deprecated_fields_are_valid_and_noted(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    volume = {"name": "sets", "mount_path": "/sets", "source": {"emptyDir": {}}}
    sources = [{"secret": "aws"}, {"secret": "hub", "name": "TOKEN", "key": "token"}, {"secret": "hub", "name": "HOME", "key": "home"}]
    kubernetes = {"tensorboard": False, "volumes": [volume], "env_from": sources}
    spec = {"version": 1, "name": "old", "train": {"workload": "mnist_mlp"}, "kubernetes": kubernetes}
    (here / "old.yaml").write_text(json.dumps(spec))
    assert run(["validate", "old.yaml", "--json"]) == 0
    deprecated = [notice for notice in json.loads(capsys.readouterr().out)["notices"] if "is deprecated" in notice]
    assert [notice.partition(" ")[0] for notice in deprecated] == ["kubernetes.tensorboard", "kubernetes.volumes", "kubernetes.env_from"]
    assert "`env: {TOKEN: {secret: hub, key: token}}`" in deprecated[-1]
