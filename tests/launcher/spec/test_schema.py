"""The committed schema and reference agree with the models."""

import json
import re
from pathlib import Path

import pytest

from launcher.spec.models import ClusterSpec
from launcher.spec.reference import reference_text
from launcher.spec.schema import REFERENCE_FILE, SCHEMA_FILE, main, schema, schema_text
from launcher.spec.schema_lookup import Model, section_of
from trainer.workloads.catalog import CATALOG

COMMAND = "python -m launcher.spec.schema --write"


def test_the_committed_schema_is_current() -> None:
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text(), COMMAND


def test_the_committed_reference_is_current() -> None:
    assert REFERENCE_FILE.read_text(encoding="utf-8") == reference_text(), COMMAND


def models(model: Model) -> set[Model]:
    inner = {section for field in model.model_fields.values() if (section := section_of(field.annotation))}
    return {model}.union(*(models(section) for section in inner))


def test_every_field_is_described_in_both() -> None:
    text = reference_text()
    for model in models(ClusterSpec) | {entry.params for entry in CATALOG.values()}:
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name}"
            assert f"| `{field.alias or name}` |" in text
            assert field.description in text or field.description in schema_text()
    assert "| `gamma` | number, 0 or more, below 1 |" in text


def test_the_schema_offers_workloads_and_their_parameters() -> None:
    train = schema()["$defs"]["Train"]
    assert train["properties"]["workload"]["examples"] == list(CATALOG)
    params = {rule["if"]["properties"]["workload"]["const"]: rule["then"]["properties"]["params"] for rule in train["allOf"]}
    assert set(params) == set(CATALOG)
    assert "dropout_keep" in params["mnist"]["properties"]


def test_the_schema_has_the_roles_of_each_strategy() -> None:
    rules = [(rule["if"], rule["then"]["properties"]["roles"]) for rule in schema()["allOf"]]
    roles = {(condition["required"][1], condition["properties"]["strategy"]["const"]): properties for condition, properties in rules}
    assert roles["train", "parameter_server"]["required"] == ["chief", "worker", "ps"]
    assert roles["command", "parameter_server"]["required"] == ["worker", "ps"]
    assert roles["train", "single"]["propertyNames"]["enum"] == ["chief", "evaluator"]


def test_the_schema_requires_one_program_for_each_role() -> None:
    document = schema()
    assert document["not"] == {"required": ["train", "command"]}
    *of_spec, of_roles = document["anyOf"]
    assert [option["required"] for option in of_spec] == [["train"], ["command"], ["image"]]
    assert {"required": ["image"]} in of_roles["properties"]["roles"]["additionalProperties"]["anyOf"]


def test_patterns_of_the_schema_are_regular_expressions_that_fit_the_examples() -> None:
    def check(part: object) -> int:
        if isinstance(part, list):
            return sum(map(check, part))
        if not isinstance(part, dict):
            return 0
        count = 0
        if isinstance(part.get("pattern"), str):
            assert all(re.search(part["pattern"], example) for example in part.get("examples", ()))
            count = 1
        return count + sum(map(check, part.values()))

    assert check(schema()) >= 5


def test_the_module_prints_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert json.loads(capsys.readouterr().out) == schema()
    assert Path(SCHEMA_FILE).name == "schema.json"
