"""The trainer's settings: every problem at once, with place, value and expectation."""

import json
from pathlib import Path
from typing import Any

import pytest

from trainer.command_settings import ConfigurationError
from trainer.configuration import check_fit, from_file, from_json
from trainer.settings import TrainerSettings
from trainer.tf_config import TaskConfig

RIGHT: dict[str, Any] = {"run": "a", "run_dir": "/runs/a", "scratch_dir": "/tmp/a", "train": {"workload": "mnist"}}


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
    assert from_file(str(yaml)) == from_file(str(as_json))


@pytest.mark.parametrize(
    "text, parts",
    [
        ("{", ["TRAINER_SETTINGS is not valid JSON", "line 1 column 2"]),
        ("[]", ["TRAINER_SETTINGS is list; expected an object"]),
        (changed(run=5), ["TRAINER_SETTINGS.run is 5; expected a valid string"]),
        (changed(max_restarts=-1), ["TRAINER_SETTINGS.max_restarts is -1; expected greater than or equal to 0"]),
        (changed(strategy="paramter_server"), ["TRAINER_SETTINGS.strategy is 'paramter_server'; expected 'single'"]),
        (changed(max_restart=1), ["TRAINER_SETTINGS.max_restart is an unknown key", "did you mean 'max_restarts'?"]),
        (changed(train={"workload": "mnist", "batchsize": 1}), ["train.batchsize is an unknown key", "did you mean 'batch_size'?"]),
        (changed(train={"workload": "mnist", "checkpoint": {"kepe": 1}}), ["train.checkpoint.kepe", "did you mean 'keep'?"]),
        (changed(train={"workload": "mnsit"}), ["train.workload is 'mnsit'", "did you mean 'mnist'?"]),
        (changed(train={"workload": "mnist", "params": {"dropout_keep": 2}}), ["train.params.dropout_keep is 2; expected less than"]),
        (changed(train={}), ["TRAINER_SETTINGS.train.workload is missing", "add it"]),
        (changed(strategy="manual"), ["TRAINER_SETTINGS.strategy is manual; mnist runs on single, mirrored,"]),
        (changed(train={"workload": "life"}), ["TRAINER_SETTINGS.strategy is single; life runs on manual"]),
    ],
)
def test_one_mistake_is_one_problem_that_says_all(text: str, parts: list[str]) -> None:
    found = problems(text)
    assert len(found) == 1, found
    for part in parts:
        assert part in found[0]


def test_every_problem_comes_at_once() -> None:
    found = problems(json.dumps({"run": 1, "startegy": "x", "train": {"workload": "mnsit", "steps": 0, "checkpoint": {"keep": 0}}}))
    places = ["run is 1", "run_dir is missing", "scratch_dir is missing", "startegy", "steps is 0", "keep is 0", "workload is 'mnsit'"]
    assert len(found) == len(places)
    for place in places:
        assert any(place in problem for problem in found), place


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
        from_file(str(path))
    assert part in str(raised.value)
    assert str(path) in str(raised.value)


PS = {"chief": ("c:1",), "worker": ("w0:1", "w1:1"), "ps": ("p0:1",)}


@pytest.mark.parametrize(
    "strategy, cluster, sync, expected",
    [
        ("parameter_server", PS, None, []),
        ("parameter_server", {"chief": ("c:1",)}, None, ["needs at least one worker", "needs at least one ps"]),
        ("parameter_server", PS, {"replicas_to_aggregate": 3}, ["replicas_to_aggregate is 3; expected at most 2"]),
        ("parameter_server", PS, {"replicas_to_aggregate": 2}, []),
        ("multi_worker_mirrored", PS, None, ["multi_worker_mirrored has no ps"]),
        ("multi_worker_mirrored", {"worker": ("a:1", "b:1")}, None, []),
        ("single", PS, None, ["single is one task; TF_CONFIG.cluster has 4"]),
        ("single", {}, {"replicas_to_aggregate": 1}, ["train.sync is for parameter_server"]),
    ],
)
def test_settings_that_do_not_fit_the_cluster(
    strategy: str, cluster: dict[str, tuple[str, ...]], sync: dict[str, int] | None, expected: list[str]
) -> None:
    train = {"workload": "mnist", **({"sync": sync} if sync else {})}
    settings = TrainerSettings.model_validate({**RIGHT, "strategy": strategy, "train": train})
    found = check_fit(TaskConfig(cluster=cluster), settings)
    assert len(found) == len(expected), found
    for part, problem in zip(expected, found, strict=True):
        assert part in problem
