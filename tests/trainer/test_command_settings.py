"""TRAINER_SETTINGS as the parent of a user's program reads them: the same keys as the trainer, and every problem at once."""

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from tests.golden_messages import Golden
from trainer.command_settings import CommandSettings, parse_document, read_document, settings_of
from trainer.settings import TrainerSettings
from trainer.tf_config import ConfigurationError

RIGHT: dict[str, Any] = {"run": "a", "run_dir": "/runs/a", "scratch_dir": "/tmp/a"}


def problems(**values: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as raised:
        settings_of(parse_document(json.dumps({**RIGHT, **values})), "TRAINER_SETTINGS")
    return raised.value.problems


def test_it_has_every_key_of_the_trainers_settings_with_the_same_default() -> None:
    trainers = {name: ... if field.is_required() else field.default for name, field in TrainerSettings.model_fields.items()}
    assert {field.name: ... if field.default is MISSING else field.default for field in fields(CommandSettings)} == trainers


def test_valid_settings_are_read() -> None:
    settings = settings_of({**RIGHT, "strategy": "parameter_server", "start_timeout": 5, "train": None}, "TRAINER_SETTINGS")
    assert (settings.strategy, settings.start_timeout, settings.max_restarts) == ("parameter_server", 5, 10)


@pytest.mark.parametrize(
    "values",
    [
        {"run": 5},
        {"strategy": "ps"},
        {"strategy": []},
        {"max_restarts": -1},
        {"max_restarts": True},
        {"local_replicas": 0},
        {"has_evaluator": 1},
        {"start_timeout": 0},
        {"orphan_timeout": float("nan")},
        {"ending": {"prot": 1}},
        {"restarts": {"ps": {"restart": "never"}}},
        {"restarts": {"ps": {"max_restarts": -1}}},
        {"restarts": {"ps": 3}},
        {"restarts": "always"},
        {"unsupervised": "ps"},
        {"max_restart": 1},
    ],
    ids=str,
)
def test_each_mistake_gives_one_complete_problem(values: dict[str, Any], golden: Golden) -> None:
    (problem,) = problems(**values)
    golden(problem)


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ConfigurationError) as raised:
        settings_of({"run_dir": 1, "rnu": 2}, "TRAINER_SETTINGS")
    assert [problem.split(" ")[0] for problem in raised.value.problems] == [
        f"TRAINER_SETTINGS.{name}" for name in ("run", "scratch_dir", "run_dir", "rnu")
    ]


@pytest.mark.parametrize(
    "text, part", [("{", "is not valid JSON: "), ("[" * 100_000, "is not valid JSON: "), ("[]", "is list; expected an object")]
)
def test_a_document_that_is_no_object_is_refused(text: str, part: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^TRAINER_SETTINGS {part}"):
        settings_of(parse_document(text), "TRAINER_SETTINGS")


def test_a_file_may_be_yaml_or_json(tmp_path: Path) -> None:
    as_json, as_yaml = tmp_path / "a.json", tmp_path / "a.yaml"
    as_json.write_text(json.dumps(RIGHT))
    as_yaml.write_text("run: a\nrun_dir: /runs/a\nscratch_dir: /tmp/a\n")
    assert read_document(str(as_json)) == read_document(str(as_yaml)) == RIGHT
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        read_document(str(tmp_path / "none"))
