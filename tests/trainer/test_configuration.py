"""The trainer's settings: all problems at once, with place, value and expectation."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.golden_messages import Golden
from trainer.command_settings import SETTINGS_VARIABLE, load, parse_document
from trainer.configuration import check_fit, validated
from trainer.settings import TrainerSettings
from trainer.strategies import STRATEGIES, Strategy
from trainer.tf_config import ConfigurationError, TaskConfig

RIGHT: dict[str, Any] = {"run": "a", "run_dir": "/runs/a", "scratch_dir": "/tmp/a", "train": {"workload": "mnist"}}


def from_json(text: str) -> TrainerSettings:
    return validated(parse_document(text), SETTINGS_VARIABLE)


def from_file(path: Path) -> TrainerSettings:
    document_and_source = load(str(path))
    assert document_and_source is not None
    return validated(*document_and_source)


def problems_of(text: str) -> list[str]:
    with pytest.raises(ConfigurationError) as raised:
        from_json(text)
    return raised.value.problems


def settings_with(**values: Any) -> str:
    return json.dumps({**RIGHT, **values})


def test_valid_settings_are_read() -> None:
    settings = from_json(settings_with(max_restarts=3))
    assert settings.max_restarts == 3
    assert settings.train is not None
    assert settings.train.workload == "mnist"


def test_yaml_and_json_files_are_read(tmp_path: Path) -> None:
    yaml = tmp_path / "settings.yaml"
    yaml.write_text("run: a\nrun_dir: /runs/a\nscratch_dir: /tmp/a\ntrain:\n  workload: my.code:Model\n")
    as_json = tmp_path / "settings.json"
    as_json.write_text(settings_with(train={"workload": "my.code:Model"}))
    assert from_file(yaml) == from_file(as_json)


WRONG = {
    "no JSON": "{",
    "a list": "[]",
    "a number for a text": settings_with(run=5),
    "a negative number": settings_with(max_restarts=-1),
    "a misspelt strategy": settings_with(strategy="paramter_server"),
    "a misspelt key": settings_with(max_restart=1),
    "a misspelt key of train": settings_with(train={"workload": "mnist", "batchsize": 1}),
    "a misspelt key below it": settings_with(train={"workload": "mnist", "checkpoint": {"kepe": 1}}),
    "a misspelt workload": settings_with(train={"workload": "mnsit"}),
    "a parameter out of range": settings_with(train={"workload": "mnist", "params": {"dropout_keep": 2}}),
    "no workload": settings_with(train={}),
    "a workload that trains, under manual": settings_with(strategy="manual"),
    "a program, not under manual": settings_with(train={"workload": "life"}),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_each_mistake_gives_one_complete_problem(mistake: str, golden: Golden) -> None:
    problems = problems_of(WRONG[mistake])
    assert len(problems) == 1, problems
    golden(*problems)


def test_all_problems_are_reported_at_once(golden: Golden) -> None:
    problems = problems_of(json.dumps({"run": 1, "startegy": "x", "train": {"workload": "mnsit", "steps": 0, "checkpoint": {"keep": 0}}}))
    assert len(problems) == 7
    golden(*problems)


@pytest.mark.parametrize(
    "content, part",
    [
        (None, "No such file"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        (b"run: [", "is not valid YAML"),
        (b"", "is NoneType; expected an object"),
    ],
)
def test_unusable_files_are_refused(tmp_path: Path, content: bytes | None, part: str) -> None:
    path = tmp_path / "settings.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError) as raised:
        from_file(path)
    assert part in str(raised.value)
    assert str(path) in str(raised.value)


PS = {"chief": ("c:1",), "worker": ("w0:1", "w1:1"), "ps": ("p0:1",)}


@pytest.mark.parametrize(
    "strategy, cluster, sync, count",
    [
        ("parameter_server", PS, None, 0),
        ("parameter_server", {"chief": ("c:1",)}, None, 2),
        ("parameter_server", PS, {"replicas_to_aggregate": 3}, 1),
        ("parameter_server", PS, {"replicas_to_aggregate": 2}, 0),
        ("multi_worker_mirrored", PS, None, 1),
        ("multi_worker_mirrored", {"worker": ("a:1", "b:1")}, None, 0),
        ("single", PS, None, 1),
        ("single", {}, {"replicas_to_aggregate": 1}, 1),
        ("manual", {"chief": ("c:1",), "ps": ("p0:1",)}, None, 1),
        ("manual", {"chief": ("c:1",), "worker": ("w0:1",)}, None, 0),
    ],
    ids=[
        "fits",
        "no worker and no ps",
        "more replicas than workers",
        "as many",
        "a ps too many",
        "workers",
        "a cluster",
        "sync",
        "a program without a worker",
        "a program",
    ],
)
def test_settings_that_do_not_fit_the_cluster(
    strategy: str, cluster: dict[str, tuple[str, ...]], sync: dict[str, int] | None, count: int, golden: Golden
) -> None:
    train = {"workload": "life" if strategy == "manual" else "mnist", **({"sync": sync} if sync else {})}
    settings = TrainerSettings.model_validate({**RIGHT, "strategy": strategy, "train": train})
    problems = check_fit(TaskConfig(cluster=cluster), settings)
    assert len(problems) == count, problems
    golden(*problems)


@pytest.mark.parametrize("kind", STRATEGIES)
def test_a_misfit_names_the_given_strategy_and_not_another_of_its_kind(kind: Strategy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STRATEGIES, "another", STRATEGIES[kind])  # type: ignore[misc] # a name that no spec can have
    settings = TrainerSettings.model_validate(RIGHT).model_copy(update={"strategy": "another"})
    cluster: dict[str, tuple[str, ...]] = {"ps": ("p:1", "p:2")} if STRATEGIES[kind].trains else {}
    problems = check_fit(TaskConfig(cluster=cluster), settings)
    assert problems
    assert [problem for problem in problems if not problem.startswith("strategy another ")] == []
