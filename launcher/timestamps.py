"""Times as RFC 3339, as engines, clusters and log files write them."""

import time
from datetime import datetime


def parse_rfc3339(stamp: object) -> float | None:
    """Return seconds since the epoch from an RFC 3339 time, to a microsecond; None for anything else, also for a time before the epoch."""
    try:
        seconds = datetime.fromisoformat(stamp).timestamp() if isinstance(stamp, str) else -1.0
    except ValueError:
        return None
    return seconds if seconds >= 0 else None  # Docker writes the year 1 for an event that has not happened


def rfc3339_seconds(moment: float) -> str:
    """Return seconds since the epoch as RFC 3339 in UTC, without a fraction."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


def rfc3339(moment: float) -> str:
    """Return seconds since the epoch as RFC 3339 in UTC with milliseconds."""
    milliseconds = int(moment * 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(milliseconds // 1000)) + f".{milliseconds % 1000:03d}Z"
