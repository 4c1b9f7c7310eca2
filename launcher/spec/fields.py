"""The building blocks of a spec's sections: their base class, and the types of values that several sections use."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from launcher.spec import names, quantities


class Section(BaseModel):
    """Base of every section: unknown keys are errors, values never change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _memory(value: object) -> object:
    if value is not None:
        quantities.parse_memory(value)
    return value


def _duration(value: object) -> object:
    if value is not None:
        quantities.parse_duration(value)
    return value


def _cpu(value: object) -> object:
    return None if value is None else quantities.parse_cpu(value)


def _pattern(pattern: str, *examples: str) -> dict[str, Any]:
    """Return the JSON Schema of a field whose validator has its own messages."""
    return {"pattern": pattern, "examples": list(examples)}


# The most that a role may have; `launcher import` puts larger amounts into overrides, or reduces them.
MAX_CORES, MAX_GPUS, MAX_RESTARTS = 1024, 64, 1000

_CpuInput = Annotated[float, Field(gt=0, le=MAX_CORES)] | Annotated[str, Field(pattern=quantities.CPU_PATTERN)]
Cpu = Annotated[float, Field(le=MAX_CORES), BeforeValidator(_cpu, json_schema_input_type=_CpuInput)]
Memory = Annotated[
    str,
    BeforeValidator(_memory, json_schema_input_type=str),
    Field(json_schema_extra=_pattern(quantities.MEMORY_PATTERN, "4Gi", "512Mi")),
]
Duration = Annotated[
    str,
    BeforeValidator(_duration, json_schema_input_type=str),
    Field(json_schema_extra=_pattern(quantities.DURATION_PATTERN, "90s", "10m", "1h30m", "24h")),
]
Name = Annotated[
    str,
    AfterValidator(names.check_run_name),
    Field(json_schema_extra={**_pattern(names.LABEL_PATTERN), "maxLength": names.MAX_NAME_LENGTH}),
]
ObjectName = Annotated[str, AfterValidator(names.check_object_name)]

# Kinds of a variable's value: pydantic puts these into an error's path; the document has no such key.
TEXT, SECRET = KINDS_OF_VALUE = ("(text)", "(secret)")


def kind_of_value(value: object) -> str:
    """Return how to read a variable's value: a mapping names the secret that has it, anything else is the value itself."""
    return SECRET if isinstance(value, Mapping | BaseModel) else TEXT
