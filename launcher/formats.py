"""Times, sizes and counts as text for people, the times and durations of options, and a status as JSON."""

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from launcher import timestamps
from launcher.errors import UsageError
from launcher.runs.status import RunStatus
from trainer.events import finite

MINUTE, HOUR, DAY = 60, 3600, 86400


def duration(seconds: float) -> str:
    """Write a duration in its two largest units: `0.4 s`, `12 s`, `3 min 05 s`, `2 h 10 min`, `3 d 04 h`."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    total = round(seconds)
    if total < MINUTE:
        return f"{total} s"
    if total < HOUR:
        return f"{total // MINUTE} min {total % MINUTE:02} s"
    if total < DAY:
        return f"{total // HOUR} h {total % HOUR // MINUTE:02} min"
    return f"{total // DAY} d {total % DAY // HOUR:02} h"


def ago(moment: float, now: float | None = None) -> str:
    """Write how long ago a time (seconds since the epoch) was."""
    seconds = (time.time() if now is None else now) - moment
    return "just now" if seconds < 1 else f"{duration(round(seconds)).replace('.0', '')} ago"


def binary_size(size: int) -> str:
    """Write bytes in the largest binary unit that leaves at least one: `4 GiB`, `1.5 GiB`."""
    return _in_units(size, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"), digits=4)


def decimal_size(size: int) -> str:
    """Write bytes as Docker and disks do, in powers of 1000: `1.18 GB`, `27 MB`."""
    return _in_units(size, 1000, ("B", "kB", "MB", "GB", "TB", "PB"), digits=3)


def _in_units(size: float, base: int, units: Sequence[str], *, digits: int) -> str:
    """Write a size in the largest of `units`, each `base` of the one before, that leaves at least one."""
    power = next((power for power in range(len(units)) if size < base ** (power + 1)), len(units) - 1)
    return f"{_significant(size / base**power, digits)} {units[power]}"


def _significant(value: float, digits: int) -> str:
    """Write a positive number with at most so many digits, but all digits before the point, never as 1e+03."""
    return f"{value:.0f}" if value >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def count(number: int, noun: str) -> str:
    """Write a number with its noun: `1 worker`, `2 workers`, `2 policies`, `2 processes`; ps is its own plural."""
    if number == 1 or noun == "ps":
        return f"{number:,} {noun}"
    if noun.endswith("y"):
        return f"{number:,} {noun.removesuffix('y')}ies"
    return f"{number:,} {noun}{'es' if noun.endswith('s') else 's'}"


def seconds_each(seconds: float) -> str:
    """Write the time of one step with a unit that fits: `1.3 ms`, `2.1 s`."""
    for factor, unit in ((1, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{_significant(seconds * factor, 3)} {unit}"
    return f"{_significant(seconds * 1e6, 3)} µs"


def number(value: float | None) -> str:
    """Write a loss or a metric. None stands for a value that was not finite, which JSON cannot hold."""
    return f"{math.nan if value is None else value:.4g}"


def metrics(values: Mapping[str, float | None], between: str = "  ") -> str:
    """Write metrics by name: `accuracy 0.973  loss nan`."""
    return between.join(f"{name} {number(value)}" for name, value in values.items())


def parse_since(text: str, now: float | None = None) -> float:
    """Return seconds since the epoch from the value of --since: `10m` (that long ago) or an RFC 3339 time; one without a zone is local time. Raises UsageError."""
    from launcher.spec.quantities import DURATION_PATTERN

    if re.fullmatch(DURATION_PATTERN, text):
        return (time.time() if now is None else now) - parse_duration_option(text, "--since")
    seconds = timestamps.parse_rfc3339(text)
    if seconds is None:
        raise UsageError(f"{text!r} is not a time", "write how long ago, e.g. 10m, or a time, e.g. 2026-01-31T12:00:00Z")
    return seconds


def parse_duration_option(text: str, option: str) -> float:
    """Return seconds from a duration such as `90s`, given for an option. Raises UsageError for anything else."""
    from launcher.spec.problems import FieldError
    from launcher.spec.quantities import parse_duration

    try:
        return parse_duration(text)
    except FieldError as error:
        raise UsageError(f"{option}: {error}; expected {error.expected}", error.remedy) from None


def document(status: RunStatus) -> dict[str, Any]:
    """Return a status as the object that `--json` prints."""
    fields: dict[str, Any] = finite(asdict(status) | {"run_dir": str(status.run_dir or "")})
    return fields
