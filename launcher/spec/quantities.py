"""CPU, memory and time as specs write them, and quantities of Kubernetes' API, parsed in one place.

CPU and memory follow Kubernetes' quantities where a person would write them (`500m`, `4Gi`, `512M`),
durations follow Go's (`90s`, `1h30m`) with days added. A number without a unit is refused for memory and
durations: it is nearly always a mistake.
"""

import math
import re

from launcher.spec.problems import FieldError, shown

_DECIMAL = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_BYTES = _DECIMAL | _BINARY
# https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
_QUANTITY_UNITS = {"": 1, "n": 1e-9, "u": 1e-6, "m": 1e-3, **_BYTES}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_NUMBER = r"[0-9]{1,18}(?:\.[0-9]{1,9})?"
CPU_PATTERN = rf"^(?:{_NUMBER}|[0-9]{{1,18}}m)$"
MEMORY_PATTERN = rf"^{_NUMBER}(?:{'|'.join(_BYTES)})$"
DURATION_PATTERN = rf"^(?:{_NUMBER}(?:ms|s|m|h|d))+$"

_NUMBER_AND_UNIT = re.compile(rf"({_NUMBER})\s*([A-Za-z]*)\Z")
_QUANTITY = re.compile(r"([0-9.]+(?:[eE][+-]?\d+)?)([a-zA-Z]*)$")
_DURATION_PART = re.compile(rf"({_NUMBER})(ms|s|m|h|d)")
MAX_SECONDS = 366 * 86400

CPU_EXPECTED = "cores, such as 2, 0.5 or 500m (half a core)"
MEMORY_EXPECTED = "a size with its unit, such as 512Mi, 4Gi or 4G"
DURATION_EXPECTED = "a duration with its unit, such as 90s, 10m, 1h30m or 24h"

# A unit as people write it -> the unit that they mean. In Kubernetes `m` is a thousandth of a byte; for memory, it is always a mistake.
_MEANT = {
    "": "Gi", "kb": "k", "mb": "M", "gb": "G", "tb": "T", "kib": "Ki", "mib": "Mi", "gib": "Gi", "tib": "Ti",
    "k": "Ki", "m": "Mi", "g": "Gi", "t": "Ti", "ki": "Ki", "mi": "Mi", "gi": "Gi", "ti": "Ti",
}  # fmt: skip
_MEANT_DURATION = {
    "sec": "s", "secs": "s", "second": "s", "seconds": "s", "min": "m", "mins": "m", "minute": "m", "minutes": "m",
    "hr": "h", "hrs": "h", "hour": "h", "hours": "h", "day": "d", "days": "d", "": "s",
}  # fmt: skip


def parse_cpu(value: object) -> float:
    """Return cores from `2`, `0.5`, `"500m"`. Raises FieldError (a ValueError) for anything else, and for less than 0.001."""
    if isinstance(value, str) and re.fullmatch(CPU_PATTERN[1:-1], value):
        cores = int(value[:-1]) / 1000 if value.endswith("m") else float(value)
    elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9:
        cores = float(value)
    else:
        raise FieldError(f"{shown(value)} is not a number of cores", CPU_EXPECTED, "write the number of cores, such as 2")
    if not cores >= 0.001:  # also NaN
        raise FieldError(f"{shown(value)} is too little", CPU_EXPECTED, "write at least 1m, a thousandth of a core")
    return cores


def millicores(cores: float) -> int:
    """Return cores in thousandths, Kubernetes' unit of CPU, rounded up: 1.1 is 1100."""
    return math.ceil(round(cores * 1000, 6))  # 1.1 * 1000 is a little more than 1100


def parse_memory(value: object) -> int:
    """Return bytes from `"4Gi"`, `"512M"`, `"1.5Gi"`. Raises FieldError (a ValueError) for anything else."""
    if isinstance(value, str) and (match := _NUMBER_AND_UNIT.match(value)):
        number, unit = match.groups()
        if unit in _BYTES and value == number + unit:
            size = math.floor(float(number) * _BYTES[unit])
            if size < 1:
                raise FieldError(f"{shown(value)} is less than a byte", MEMORY_EXPECTED, "write a size of at least one byte")
            return size
        meant = unit if unit in _BYTES else _MEANT.get(unit.lower())
        remedy = f"write {number}{meant}" if meant else "write the size, for example 4Gi"
        raise FieldError(_unit_message(value, unit), MEMORY_EXPECTED, remedy)
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise FieldError(f"{shown(value)} has no unit", MEMORY_EXPECTED, f"write {_plain(value)}Gi, if gibibytes are meant")
    raise FieldError(f"{shown(value)} is not a size", MEMORY_EXPECTED, "write the size, for example 4Gi")


def parse_quantity(quantity: object) -> float:
    """Return a quantity of Kubernetes, such as `500m` or `4Gi`, as its API has it, as a number; 0 for invalid text."""
    match = _QUANTITY.match(str(quantity))
    return float(match[1]) * _QUANTITY_UNITS.get(match[2], 0.0) if match else 0.0


def parse_duration(value: object) -> float:
    """Return seconds from `"90s"`, `"10m"`, `"1h30m"`, `"1d"`. Raises FieldError (a ValueError) for anything else."""
    if isinstance(value, str) and re.fullmatch(DURATION_PATTERN[1:-1], value):
        seconds = math.fsum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(value))
        if not 0 < seconds <= MAX_SECONDS:
            raise FieldError(f"{shown(value)} is out of range", "more than 0s and at most 366d", "write a duration in that range")
        return seconds
    if isinstance(value, str) and (match := _NUMBER_AND_UNIT.match(value)):
        number, unit = match.groups()
        meant = _MEANT_DURATION.get(unit.lower(), unit.lower())
        remedy = f"write {number}{meant if meant in _SECONDS else 's'}"
        raise FieldError(_unit_message(value, unit), DURATION_EXPECTED, remedy)
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise FieldError(f"{shown(value)} has no unit", DURATION_EXPECTED, f"write {_plain(value)}s, if seconds are meant")
    raise FieldError(f"{shown(value)} is not a duration", DURATION_EXPECTED, "write the duration, for example 10m")


def _unit_message(value: str, unit: str) -> str:
    if not unit:
        return f"{shown(value)} has no unit"
    return f"{shown(value)} has a space before its unit" if " " in value else f"{shown(value)} has the unknown unit {shown(unit)}"


def _plain(value: float) -> str:
    return str(abs(value)) if abs(value) < 10**18 else "1"
