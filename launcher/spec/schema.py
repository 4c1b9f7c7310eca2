"""The spec's JSON Schema, for editors; `python -m launcher.spec.schema --write` writes it and docs/spec.md."""

import json
import sys
from pathlib import Path
from typing import Any

from launcher.spec.models import ClusterSpec
from launcher.spec.rules import COMMAND_STRATEGIES, OBJECT_REFERENCE_PATTERN
from trainer.strategies import STRATEGIES, Traits
from trainer.workloads.catalog import CATALOG

SCHEMA_FILE = Path(__file__).with_name("schema.json")
REFERENCE_FILE = Path(__file__).parents[2] / "docs" / "spec.md"


def schema() -> dict[str, Any]:
    """Return the JSON Schema of specs: that of the models, with those rules that a schema can express."""
    root = ClusterSpec.model_json_schema(by_alias=True, mode="validation")
    _drop_titles(root)
    train = root["$defs"]["Train"]
    choices = [{"enum": list(CATALOG)}, {"pattern": OBJECT_REFERENCE_PATTERN}]
    train["properties"]["workload"] |= {"anyOf": choices, "examples": list(CATALOG)}
    train["allOf"] = []
    for name, entry in CATALOG.items():
        params = entry.params.model_json_schema()
        _drop_titles(params)
        this_workload = {"required": ["workload"], "properties": {"workload": {"const": name}}}
        train["allOf"].append({"if": this_workload, "then": {"properties": {"params": params}}})
    root["allOf"] = [
        _roles_condition(strategy, allowed, program)
        for program, roles_by_strategy in (("train", STRATEGIES), ("command", COMMAND_STRATEGIES))
        for strategy, allowed in roles_by_strategy.items()
    ]
    root["not"] = {"required": ["train", "command"]}
    each = {"anyOf": [{"required": ["command"]}, {"required": ["image"]}, {"type": "null"}]}
    root["anyOf"] = [
        *({"required": [key]} for key in ("train", "command", "image")),
        {"required": ["roles"], "properties": {"roles": {"additionalProperties": each}}},
    ]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Cluster spec", **root}


def _roles_condition(strategy: str, allowed: Traits, program: str) -> dict[str, Any]:
    return {
        "if": {"required": ["strategy", program], "properties": {"strategy": {"const": strategy}}},
        "then": {
            "properties": {
                "roles": {"required": list(allowed.mandatory), "propertyNames": {"enum": [*allowed.mandatory, *allowed.optional]}}
            }
        },
    }


def schema_text() -> str:
    """Return the JSON Schema as it is committed in schema.json."""
    return json.dumps(schema(), indent=2) + "\n"


def _drop_titles(part: Any) -> None:
    """Remove pydantic's titles: they repeat the names of the fields."""
    if isinstance(part, dict):
        if isinstance(part.get("title"), str):
            del part["title"]
        for below in part.values():
            _drop_titles(below)
    elif isinstance(part, list):
        for below in part:
            _drop_titles(below)


def main(arguments: list[str]) -> int:
    """Write both files, or print the schema."""
    from launcher.spec.reference import reference_text

    if arguments == ["--write"]:
        SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
        REFERENCE_FILE.write_text(reference_text(), encoding="utf-8")
    else:
        print(schema_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
