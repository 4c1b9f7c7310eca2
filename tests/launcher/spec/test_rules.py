"""Specs that the rules between sections accept. Refused specs are in tests/invalid."""

from pathlib import Path

import pytest

from launcher.errors import SpecError
from launcher.spec import role_programs
from launcher.spec.loader import dump, load
from launcher.spec.rules import check_workload

ROOT = Path(__file__).parents[3]


def spec_of(tmp_path: Path, strategy: str, roles: str, fields: str = "train: {workload: mnist_mlp}") -> Path:
    file = tmp_path / "spec.yaml"
    file.write_text(f"version: 1\nname: run\nstrategy: {strategy}\nroles: {roles}\n{fields}\n", encoding="utf-8")
    return file


@pytest.mark.parametrize(
    "strategy, roles",
    [
        ("single", "{chief: {}}"),
        ("single", "{chief: {}, evaluator: {}}"),
        ("mirrored", "{chief: {gpus: 4}}"),
        ("multi_worker_mirrored", "{worker: {}}"),
        ("multi_worker_mirrored", "{worker: {replicas: 3}, evaluator: {}}"),
        ("multi_worker_mirrored", "{chief: {}, worker: {replicas: 3}}"),
        ("parameter_server", "{chief: {}, worker: {replicas: 3}, ps: {replicas: 2}, evaluator: {}}"),
        ("parameter_server", "{chief: {}, worker: {}, ps: {}, evaluator: null}"),
        ("manual", "{chief: {}, worker: {replicas: 3}}"),
        ("manual", "{chief: {}, worker: {}, ps: {replicas: 2}}"),
    ],
)
def test_a_strategy_accepts_its_roles(strategy: str, roles: str, tmp_path: Path) -> None:
    train = "train: {workload: placement}" if strategy == "manual" else "train: {workload: mnist_mlp}"
    assert load(spec_of(tmp_path, strategy, roles, train)).strategy == strategy


@pytest.mark.parametrize(
    "strategy, roles, fields",
    [
        ("single", "{chief: {}}", "image: 'mine:1'"),
        ("parameter_server", "{ps: {image: 'ps:1', args: [--serve], restart: always}, worker: {command: [./train]}}", ""),
        (
            "parameter_server",
            "{ps: {command: [./ps]}, worker: {max_restarts: 0, restart: never}}",
            "command: [./train]\nsuccess: all_workers",
        ),
        ("single", "{chief: {image: 'mine:1', env: {A: b}, max_restarts: 3}}", "train: {workload: mnist_mlp}"),
        ("single", "{chief: {command: [./train]}}", "supervise: true"),
    ],
)
def test_each_role_has_something_to_run(strategy: str, roles: str, fields: str, tmp_path: Path) -> None:
    assert load(spec_of(tmp_path, strategy, roles, fields)).strategy == strategy


def test_variables_of_a_role_count_as_secret_too(tmp_path: Path) -> None:
    roles = "{chief: {env: {TOKEN: a}}}"
    assert role_programs.sets_variables(dump(load(spec_of(tmp_path, "single", roles))))
    assert not role_programs.sets_variables(dump(load(spec_of(tmp_path, "single", "{chief: {}}"))))


@pytest.mark.parametrize(
    "variable, expected", [("value: a", True), ("$patch: delete", False), ("valueFrom: {fieldRef: {fieldPath: spec.nodeName}}", False)]
)
def test_variables_of_an_override_count_as_secret_too(variable: str, expected: bool, tmp_path: Path) -> None:
    override = f"kubernetes: {{overrides: {{chief: {{spec: {{containers: [{{name: trainer, env: [{{name: TOKEN, {variable}}}]}}]}}}}}}}}"
    spec = load(spec_of(tmp_path, "single", "{chief: {}}", f"train: {{workload: mnist_mlp}}\n{override}"))
    assert role_programs.sets_variables(dump(spec)) == expected


@pytest.mark.parametrize(
    "fields",
    [
        "train: {workload: mnist_mlp}\nlimits: {deadline: 10m, start_timeout: 10m}",
        "train: {workload: mnist_mlp}\ntensorboard: {port: 2222}",
        "train: {workload: mnist, params: {dropout_keep: 1, learning_rate: 1e-4}}",
        "train: {workload: 'a.b:C', params: {anything: [1, {x: y}]}}",
        "train: {workload: 'a:C', evaluate: {every_steps: 10}}",
        "command: [python]",
        "command: [python]\nenv: {GRPC_FAIL_FAST: use_caller, _X: '', LANG: C.UTF-8}",
        "train: {workload: mnist_mlp}\nkubernetes: {node_selector: {example.com/pool: A_1, zone: ''}}",
    ],
)
def test_a_valid_spec_is_accepted(fields: str, tmp_path: Path) -> None:
    assert load(spec_of(tmp_path, "single", "{chief: {}}", fields)).name == "run"


def test_a_users_program_with_manual_placement_is_accepted(tmp_path: Path) -> None:
    train = "train: {workload: 'program:averages', params: {count: 10}, data: synthetic, seed: 3}"
    assert load(spec_of(tmp_path, "manual", "{chief: {}, worker: {}}", train)).train is not None


@pytest.mark.parametrize("workload", ["mnist", "mnist_mlp", "a:B", "a.b.c:D", "a.b:outer.Inner", "_a:_b"])
def test_names_of_workloads_are_accepted(workload: str) -> None:
    check_workload(workload)


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_is_valid_small_and_known_to_editors(example: Path) -> None:
    text = example.read_text(encoding="utf-8")
    spec = load(example)
    assert spec.name == example.stem
    assert f"launcher up examples/{example.name}" in text
    assert len(text.splitlines()) < 40
    schema = text.splitlines()[0].removeprefix("# yaml-language-server: $schema=")
    assert (example.parent / schema).resolve() == ROOT / "launcher" / "spec" / "schema.json"


def test_a_missing_directory_whose_parent_cannot_be_read_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> list[Path]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)  # as in /home if others may only pass it; root may read everything
    file = spec_of(tmp_path, "single", "{chief: {}}", "train: {workload: mnist_mlp}\ncode: nowhere")
    with pytest.raises(SpecError) as caught:
        load(file)
    assert [problem.path for problem in caught.value.problems] == ["code"]
    assert "does not exist" in caught.value.problems[0].message
