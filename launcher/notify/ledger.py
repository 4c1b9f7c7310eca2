"""The record of a run's messages that were sent or are being sent, so that no other process sends them too. Pure; callers keep the entries.

An entry is `{key, since, at, state, words}`. It is `claimed` `until` the time of its sender is over, then `sent` or `failed`. If the sender is
gone, the claim is void after that time. The sender may have sent the message just before: the receiver knows a second one by its id. A key has the
channel and the start of the run, so that each start of a name sends its own messages.
"""

from collections.abc import Sequence
from typing import Any

from launcher.notify.message import Message

Entry = dict[str, Any]

CLAIMED, SENT, FAILED = "claimed", "sent", "failed"
_SAME_STALL_WITHIN = 60.0  # seconds between two times at which one stall is reported to have begun
_REPEAT_INTERVAL = 3600.0  # seconds in which the stalls of one task are reported once, so that one that comes and goes causes no flood
_MAX_ENTRIES = 100  # entries that are kept


def wait(entries: Sequence[Entry], message: Message, channel: str, now: float) -> float | None:
    """Return in how many seconds a message may be sent by a channel: 0.0 now, None never, as it was sent or given up."""
    found = [_wait(_of(entries, key, channel, message, now), now) for key in message.keys]
    return min((seconds for seconds in found if seconds is not None), default=None)


def with_claim(entries: Sequence[Entry], message: Message, channel: str, now: float, seconds: float) -> list[Entry]:
    """Return the entries with the claim of a sender on a message that it tries to send for so many seconds."""
    return _with_entry(entries, message, channel, {"at": now, "until": now + seconds, "state": CLAIMED})


def with_outcome(entries: Sequence[Entry], message: Message, channel: str, outcome: Entry) -> list[Entry]:
    """Return the entries with how sending a message has ended: `state`, `at` and `words`."""
    return _with_entry(entries, message, channel, outcome)


def has(entries: Sequence[Entry], message: Message, channel: str) -> bool:
    """Return whether the entries have anything on a message; not where another start has replaced them since it was claimed."""
    keys = [_key(key, channel, message) for key in message.keys]
    return any(entry["key"] in keys for entry in entries)


def outcomes(entries: Sequence[Entry]) -> tuple[str, ...]:
    """Return in a line each how sending has ended, for people."""
    return tuple(dict.fromkeys(str(entry["words"]) for entry in entries if entry.get("words")))


def _key(key: str, channel: str, message: Message) -> str:
    return f"{channel} {key} {int(message.started or 0)}"


def _with_entry(entries: Sequence[Entry], message: Message, channel: str, outcome: Entry) -> list[Entry]:
    keys = [_key(key, channel, message) for key in message.keys]
    others = [entry for entry in entries if entry["key"] not in keys]
    return [*others, *({"key": key, "since": message.since, **outcome} for key in keys)][-_MAX_ENTRIES:]


def _of(entries: Sequence[Entry], key: str, channel: str, message: Message, now: float) -> Entry | None:
    """Return the entry by which a message was sent, or is being sent; None where none was, or that of another stall long ago."""
    found = next((entry for entry in entries if entry["key"] == _key(key, channel, message)), None)
    if found is None or key == "ended":
        return found
    is_same = abs(float(found["since"]) - message.since) <= _SAME_STALL_WITHIN
    return found if is_same or now - float(found["at"]) < _REPEAT_INTERVAL else None


def _wait(entry: Entry | None, now: float) -> float | None:
    if entry is None:
        return 0.0
    return max(0.0, float(entry["until"]) - now) if entry["state"] == CLAIMED else None
