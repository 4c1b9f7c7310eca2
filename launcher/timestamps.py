"""Times as RFC 3339, as engines, clusters and log files write them."""

from datetime import UTC, datetime

_LATEST = 253402300799.0  # the last second of the year 9999: RFC 3339 has no later years


def parse_rfc3339(stamp: object) -> float | None:
    """Return seconds since the epoch from an RFC 3339 time, to a microsecond; None for anything else, and for a time before the epoch.

    A time without an offset is local time, as in `--since`.
    """
    try:
        seconds = datetime.fromisoformat(stamp).timestamp() if isinstance(stamp, str) else -1.0
    except ValueError:
        return None
    return seconds if seconds >= 0 else None  # Docker writes the year 1 for an event that has not happened


def rfc3339(moment: float, timespec: str = "milliseconds") -> str:
    """Return seconds since the epoch as RFC 3339 in UTC, cut at `timespec`, as `datetime.isoformat` has it; later times than it can have become its last."""
    return datetime.fromtimestamp(min(moment, _LATEST), UTC).isoformat(timespec=timespec).replace("+00:00", "Z")
