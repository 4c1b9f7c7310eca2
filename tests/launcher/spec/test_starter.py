"""Starter specs validate as they are written."""

from pathlib import Path
from typing import get_args

import pytest

from launcher.errors import UsageError
from launcher.spec.loader import load
from launcher.spec.starter import starter_spec
from trainer.strategies import TRAINING_STRATEGIES, Strategy
from trainer.workloads.catalog import CATALOG

BUILT_IN = [(strategy, name) for name, entry in CATALOG.items() for strategy in entry.strategies]
USER_PROGRAMS = [(strategy, name) for name in ("my.code:Model", None) for strategy in get_args(Strategy)]


@pytest.mark.parametrize("strategy, workload", [*BUILT_IN, *USER_PROGRAMS])
def test_every_starter_validates(strategy: str, workload: str | None, tmp_path: Path) -> None:
    (tmp_path / "my").mkdir()
    (tmp_path / "my" / "code.py").write_text("class Model: ...")
    (tmp_path / "train.py").touch()
    file = tmp_path / "cluster.yaml"
    file.write_text(starter_spec("my-run", workload, strategy), encoding="utf-8")
    spec = load(file)
    assert (spec.name, spec.strategy) == ("my-run", strategy)
    assert (spec.train.workload if spec.train else None) == workload
    assert spec.command == (None if workload else ["python", "train.py"])


@pytest.mark.parametrize("strategy", TRAINING_STRATEGIES)
def test_the_lines_that_are_commented_out_validate_too(strategy: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    text = starter_spec("my-run", "mnist", strategy)
    lines = [
        line.replace("# ", "", 1)
        if line.lstrip().startswith(("# evaluator", "# params", "# data", "# check", "# eval", "# tensor", "# limits"))
        else line
        for line in text.splitlines()
    ]
    assert len([line for line in lines if line.lstrip().startswith("#")]) < text.count("#")
    (tmp_path / "cluster.yaml").write_text("\n".join(lines), encoding="utf-8")
    spec = load(tmp_path / "cluster.yaml")
    assert spec.roles.evaluator is not None
    assert spec.limits.deadline == "24h"


@pytest.mark.parametrize("name", ["no", "true", "null"])
def test_a_name_that_yaml_would_read_as_something_else_stays_a_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(starter_spec(name, "mnist", "single"), encoding="utf-8")
    assert load(tmp_path / "cluster.yaml").name == name


@pytest.mark.parametrize(
    "name, workload, strategy, message",
    [
        ("My Run", "mnist", "single", "DNS label"),
        ("run", "mnits", "single", "not a built-in workload"),
        ("run", "mnist", "horovod", "no strategy"),
        ("run", "mnist", "manual", "mnist does not run with strategy manual"),
        ("run", "life", "single", "life does not run with strategy single"),
    ],
)
def test_invalid_arguments_are_refused(name: str, workload: str, strategy: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        starter_spec(name, workload, strategy)
    assert caught.value.remedy
