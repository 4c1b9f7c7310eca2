"""Times as RFC 3339, as engines, clusters and log files write them."""

import time
from datetime import datetime


def seconds(stamp: object) -> float | None:
    """Return seconds since the epoch from an RFC 3339 time, to a microsecond; None for what is no such time, as one before the epoch."""
    try:
        found = datetime.fromisoformat(stamp).timestamp() if isinstance(stamp, str) else -1.0
    except ValueError:
        return None
    return found if found >= 0 else None  # an engine writes the year 1 for what has not happened


def to_the_second(moment: float) -> str:
    """Return seconds since the epoch as RFC 3339 in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


def rfc3339(moment: float) -> str:
    """Return seconds since the epoch as RFC 3339 in UTC with milliseconds."""
    milliseconds = int(moment * 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(milliseconds // 1000)) + f".{milliseconds % 1000:03d}Z"
