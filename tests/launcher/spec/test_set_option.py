"""`--set path=value`."""

from pathlib import Path

import pytest

from launcher.errors import Problem, SpecError
from launcher.spec.loader import load

SPEC = """\
version: 1
name: run
strategy: parameter_server
roles: {chief: {}, ps: {}, worker: {replicas: 2}}
train:
  workload: mnist_mlp
  steps: 010
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC.replace("010", "100"), encoding="utf-8")
    return path


def problems(file: Path, *overrides: str) -> list[Problem]:
    with pytest.raises(SpecError) as caught:
        load(file, overrides)
    return caught.value.problems


def test_values_are_yaml(file: Path) -> None:
    spec = load(
        file, ["train.steps=500", "roles.ps={replicas: 3, cpu: 500m}", "env.A=text", "env.B='1'", "train.params.learning_rate=1e-3"]
    )
    assert spec.train is not None
    assert spec.roles.ps is not None
    assert spec.train.steps == 500
    assert (spec.roles.ps.replicas, spec.roles.ps.cpu) == (3, 0.5)
    assert spec.env == {"A": "text", "B": "1"}
    assert spec.train.params == {"learning_rate": 0.001}


def test_the_last_override_wins_and_null_removes_a_value(file: Path) -> None:
    spec = load(file, ["name=one", "name=two", "roles.evaluator={}", "roles.evaluator=null", "train=null", "command=[python, train.py]"])
    assert spec.name == "two"
    assert spec.roles.evaluator is None
    assert spec.train is None
    assert spec.command == ["python", "train.py"]


def test_values_that_are_replaced_are_not_checked(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(SPEC, encoding="utf-8")
    assert [problem.path for problem in problems(wrong)] == ["train.steps"]
    spec = load(wrong, ["train.steps=10"])
    assert spec.train is not None
    assert spec.train.steps == 10


def test_problems_name_the_override_and_the_column(file: Path) -> None:
    reported = problems(file, "name=run", "train.steps=many", "roles.worker={replica: 2}", "train.workload=mnits", "tensorboard.port=0")
    assert [(problem.file, problem.line, problem.column, problem.path) for problem in reported] == [
        ("--set", 2, 13, "train.steps"),
        ("--set", 3, 15, "roles.worker.replica"),
        ("--set", 4, 16, "train.workload"),
        ("--set", 5, 18, "tensorboard.port"),
    ]
    assert reported[1].remedy == "write `replicas`"
    assert reported[2].remedy == "write mnist"


@pytest.mark.parametrize(
    "override, message",
    [
        ("train.steps", "sets nothing"),
        ("=5", "sets nothing"),
        ("train..steps=5", "sets nothing"),
        ("", "sets nothing"),
        ("name.first=x", "has nothing inside to set"),
        ("version.x=1", "has nothing inside to set"),
        ("train.steps=[1", "not valid YAML"),
        ("train.steps=\t", "not valid YAML"),
        ("train.steps=*a", "not valid YAML"),
        ("train.steps=010", "octal"),
        ("train.steps=1\n---\n2", "second document"),
        ("train={workload: mnist, workload: mnist}", "duplicate"),
        ("trian.steps=5", "unknown key `trian`"),
        ("roles.evaluator=", "has no value"),
        ("name=\udc80", "not UTF-8"),
    ],
)
def test_invalid_overrides_are_refused(file: Path, override: str, message: str) -> None:
    reported = problems(file, override)
    assert len(reported) == 1
    assert reported[0].file == "--set"
    assert reported[0].line == 1
    assert message in reported[0].message
    assert reported[0].remedy


def test_every_override_is_checked_and_problems_of_the_file_come_first(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(SPEC, encoding="utf-8")
    assert [problem.file for problem in problems(wrong, "a", "b", "name=X")] == [str(wrong), "--set", "--set", "--set"]


def test_paths_are_relative_to_the_current_directory(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "directory"
    (directory / "data").mkdir(parents=True)
    monkeypatch.chdir(directory)
    spec = load(file, ["train.data=data"])
    assert spec.train is not None
    assert spec.train.data == str(directory / "data")
