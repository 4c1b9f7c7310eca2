"""The trainer's settings: every problem at once, with place, value and expectation."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.golden_messages import Golden
from trainer.command_settings import VARIABLE, load, parse_document
from trainer.configuration import check_fit, validated
from trainer.settings import TrainerSettings
from trainer.strategies import STRATEGIES, Strategy
from trainer.tf_config import ConfigurationError, TaskConfig

RIGHT: dict[str, Any] = {"run": "a", "run_dir": "/runs/a", "scratch_dir": "/tmp/a", "train": {"workload": "mnist"}}


def from_json(text: str) -> TrainerSettings:
    return validated(parse_document(text), VARIABLE)


def from_file(path: Path) -> TrainerSettings:
    found = load(str(path))
    assert found is not None
    return validated(*found)


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigurationError) as raised:
        from_json(text)
    return raised.value.problems


def changed(**values: Any) -> str:
    return json.dumps({**RIGHT, **values})


def test_what_is_right_is_read() -> None:
    settings = from_json(changed(max_restarts=3))
    assert settings.max_restarts == 3
    assert settings.train is not None
    assert settings.train.workload == "mnist"


def test_yaml_and_json_files_are_read(tmp_path: Path) -> None:
    yaml = tmp_path / "settings.yaml"
    yaml.write_text("run: a\nrun_dir: /runs/a\nscratch_dir: /tmp/a\ntrain:\n  workload: my.code:Model\n")
    as_json = tmp_path / "settings.json"
    as_json.write_text(changed(train={"workload": "my.code:Model"}))
    assert from_file(yaml) == from_file(as_json)


WRONG = {
    "no JSON": "{",
    "a list": "[]",
    "a number for a text": changed(run=5),
    "a negative number": changed(max_restarts=-1),
    "a misspelt strategy": changed(strategy="paramter_server"),
    "a misspelt key": changed(max_restart=1),
    "a misspelt key of train": changed(train={"workload": "mnist", "batchsize": 1}),
    "a misspelt key below it": changed(train={"workload": "mnist", "checkpoint": {"kepe": 1}}),
    "a misspelt workload": changed(train={"workload": "mnsit"}),
    "a parameter out of range": changed(train={"workload": "mnist", "params": {"dropout_keep": 2}}),
    "no workload": changed(train={}),
    "a workload that trains, by hand": changed(strategy="manual"),
    "a program, not by hand": changed(train={"workload": "life"}),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_one_mistake_is_one_problem_that_says_all(mistake: str, golden: Golden) -> None:
    found = problems(WRONG[mistake])
    assert len(found) == 1, found
    golden(*found)


def test_every_problem_comes_at_once(golden: Golden) -> None:
    found = problems(json.dumps({"run": 1, "startegy": "x", "train": {"workload": "mnsit", "steps": 0, "checkpoint": {"keep": 0}}}))
    assert len(found) == 7
    golden(*found)


@pytest.mark.parametrize(
    "content, part",
    [
        (None, "No such file"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        (b"run: [", "is not valid YAML"),
        (b"", "is NoneType; expected an object"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, content: bytes | None, part: str) -> None:
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
    ],
    ids=["fits", "no worker and no ps", "more replicas than workers", "as many", "a ps too many", "workers", "a cluster", "sync"],
)
def test_settings_that_do_not_fit_the_cluster(
    strategy: str, cluster: dict[str, tuple[str, ...]], sync: dict[str, int] | None, count: int, golden: Golden
) -> None:
    train = {"workload": "mnist", **({"sync": sync} if sync else {})}
    settings = TrainerSettings.model_validate({**RIGHT, "strategy": strategy, "train": train})
    found = check_fit(TaskConfig(cluster=cluster), settings)
    assert len(found) == count, found
    golden(*found)


@pytest.mark.parametrize("kind", STRATEGIES)
def test_a_misfit_names_the_strategy_that_was_given_and_not_the_one_of_its_kind(kind: Strategy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STRATEGIES, "another", STRATEGIES[kind])  # type: ignore[misc] # none that a spec can name
    settings = TrainerSettings.model_validate(RIGHT).model_copy(update={"strategy": "another"})
    cluster: dict[str, tuple[str, ...]] = {"ps": ("p:1", "p:2")} if STRATEGIES[kind].trains else {}
    found = check_fit(TaskConfig(cluster=cluster), settings)
    assert found
    assert [problem for problem in found if not problem.startswith("strategy another ")] == []
