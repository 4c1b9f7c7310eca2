"""docs/spec.md, made from the models: every field with its type, default and meaning."""

import json
from collections.abc import Iterator
from typing import Any

from launcher.spec.models import ClusterSpec, Role
from launcher.spec.quantities import CPU_PATTERN, DURATION_PATTERN, MEMORY_PATTERN
from launcher.spec.rules import SHAPES
from launcher.spec.schema_lookup import Model, field_name, section_of
from trainer.workloads.catalog import CATALOG

_HEAD = """\
# The spec

<!-- Made by `python -m launcher.spec.schema --write` from the models; a test fails when it is out of date. -->

One YAML file describes a cluster. `launcher validate FILE` checks it, and reports every problem at once, each
with its line, what was expected and what to do. `launcher init` writes a first one; `examples/` holds one for each strategy.

```yaml
version: 1
name: mnist
strategy: parameter_server
roles:
  chief: {}
  ps: {replicas: 1}
  worker: {replicas: 2, cpu: 4, memory: 8Gi}
train:
  workload: mnist_mlp
  steps: 2000
```

**Editors.** With the YAML language server (VS Code's YAML extension, Neovim, JetBrains and others), a first line like this
completes and checks a spec as you type:

```yaml
# yaml-language-server: $schema=cluster.schema.json
```

`launcher schema > cluster.schema.json` writes that file; what `launcher init` writes refers to the one of the launcher that wrote it, which
is not there for others; the specs in `examples/` refer to the one in this repository.

**Values.** CPU is in cores (`2`, `0.5`, `500m`), memory has a unit (`512Mi`, `4Gi`, `4G`), and so have durations (`90s`, `10m`,
`1h30m`, `24h`, `2d`). `yes`, `no`, `on` and `off` are booleans in YAML: put them in quotes where text is meant. Dates and numbers such
as `12:30` are text; numbers with leading zeros are refused, because YAML readers disagree about them.

**Overrides.** `--set path=value` changes one value for one command: `--set train.steps=500`, `--set 'roles.ps={replicas: 2}'`,
`--set roles.evaluator=null`. Values are YAML. Relative paths in the spec start at the spec's directory; in `--set` they start at
the current directory.
"""

_SHAPES_HEAD = """\
## Which roles a strategy has

| strategy | required | optional |
| --- | --- | --- |
"""

_SHAPES_TAIL = """\

There is one chief and at most one evaluator. Without a chief, `worker-0` of multi_worker_mirrored does the chief's work.
Of a `command`, parameter_server may go without a chief, too: `worker-0` then leads, and the run has succeeded when it is done.
"""

_WORKLOADS_HEAD = """\
## Workloads

The names for `train.workload`, the defaults that each workload gives to `train`, and its `train.params`.
A workload or program of your own is `package.module:name`, with the module in `code`.
"""


def reference_text() -> str:
    """Return the text of docs/spec.md."""
    parts = [_HEAD, "## The document\n\n" + _table(ClusterSpec)]
    for path, model in _sections(ClusterSpec, ""):
        parts.append(f"## `{path}`\n\n{model.__doc__}\n\n{_table(model)}")
        if path == "roles":
            parts.append(_shapes())
    parts.append(_WORKLOADS_HEAD)
    parts += [_workload(name) for name in CATALOG]
    return "\n".join(parts)


def _shapes() -> str:
    rows = [f"| `{name}` | {_code(shape.mandatory)} | {_code(shape.optional)} |\n" for name, shape in SHAPES.items()]
    return _SHAPES_HEAD + "".join(rows) + _SHAPES_TAIL


def _code(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


_AT_THE_TOP = {section_of(field.annotation) for field in ClusterSpec.model_fields.values()} - {None}


def _sections(model: Model, path: str, seen: tuple[Model, ...] = ()) -> Iterator[tuple[str, Model]]:
    """Yield every section below a model once; those of one model (the roles) under one heading."""
    for name, field in model.model_fields.items():
        section = section_of(field.annotation)
        if section is None or section in seen or (path and section in _AT_THE_TOP):
            continue
        seen = (*seen, section)
        same = [field_name(other, info) for other, info in model.model_fields.items() if section_of(info.annotation) is section]
        below = f"{path}.{field_name(name, field)}" if path else field_name(name, field)
        heading = f"{path}.<role>" if section is Role else "`, `".join(same) if len(same) > 1 else below
        yield heading, section
        yield from _sections(section, below, seen)


def _table(model: Model) -> str:
    schema = model.model_json_schema(by_alias=True)
    definitions = schema.get("$defs", {})
    rows = ["| field | type | default | meaning |\n", "| --- | --- | --- | --- |\n"]
    for name, field in schema["properties"].items():
        default = "required" if name in schema.get("required", ()) else _default(field.get("default"))
        rows.append(f"| `{name}` | {_type(field)} | {default} | {_meaning(field, definitions)} |\n")
    return "".join(rows)


def _meaning(field: dict[str, Any], definitions: dict[str, Any]) -> str:
    # pydantic leaves out a description that the section itself has.
    section = definitions.get(str(field.get("$ref", "")).rpartition("/")[2], {})
    return str(field.get("description") or section.get("description", ""))


def _default(value: Any) -> str:
    return "" if value is None else f"`{json.dumps(value) if not isinstance(value, str) else value}`"


def _workload(name: str) -> str:
    entry = CATALOG[name]
    chosen = entry.defaults.model_dump(exclude_unset=True, exclude={"workload"})
    defaults = ", ".join(f"`{path}: {value}`" for path, value in _flatten(chosen))
    about = f"Defaults: {defaults}." if defaults else f"A program: strategy {_code(entry.strategies)}."
    return f"### `{name}`\n\n{entry.summary}. {about}\n\n{_table(entry.params)}"


def _flatten(values: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _type(field: dict[str, Any]) -> str:
    """Say in words what JSON Schema a field has."""
    if "anyOf" in field:
        names = [_type(choice) for choice in field["anyOf"] if choice != {"type": "null"}]
        return " or ".join(dict.fromkeys(names))
    if "$ref" in field:
        return "section"
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if "enum" in field:
        return ", ".join(f"`{choice}`" for choice in field["enum"])
    if field.get("type") == "array":
        return f"list of {_PLURAL.get(_type(field['items']), 'values')}"
    if field.get("type") == "object":
        inner = field.get("additionalProperties")
        return "mapping of texts" if isinstance(inner, dict) and inner.get("type") == "string" else "mapping"
    if field.get("pattern") in _QUANTITIES:
        return _QUANTITIES[field["pattern"]]
    return _WORDS.get(field.get("type", ""), "anything") + _range(field)


_QUANTITIES = {CPU_PATTERN: "quantity", MEMORY_PATTERN: "size", DURATION_PATTERN: "duration"}
_WORDS = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false"}
_PLURAL = {"text": "texts", "section": "sections", "mapping": "mappings"}


def _range(field: dict[str, Any]) -> str:
    low, high = field.get("minimum"), field.get("maximum")
    if low is not None and high is not None:
        return f", {_plain(low)} to {_plain(high)}"
    bounds = ((low, "{} or more"), (field.get("exclusiveMinimum"), "above {}"), (high, "at most {}"))
    return "".join(f", {words.format(_plain(bound))}" for bound, words in bounds if bound is not None)


def _plain(number: float) -> str:
    return f"{int(number):,}" if float(number).is_integer() else str(number)
