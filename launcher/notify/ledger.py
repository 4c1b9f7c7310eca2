"""The ledger of a run's messages that were sent or are being sent, so that no other process also sends them. Pure; callers store the entries.

An entry is `{key, since, at, until, state, words}`; a message has one for each stalled task, or one for the end of the run. Its key has the channel and the
start of the run, so that each start of a run sends its own messages, also under the same name.
On Kubernetes its state is `claimed` while a sender tries, then `sent` or `failed`. The claim of a sender that died expires at `until`; if the dead sender
had just sent the message about the end of the run, the receiver recognizes the duplicate by its id.
A supervisor is the only process that starts senders for its run, so it needs no claim: it sets `sent` before it tries.
"""

from collections.abc import Sequence
from typing import Any

from launcher.notify.message import Message

Entry = dict[str, Any]

# CLAIMED: a sender process tries to send the message, and no other may.
CLAIMED, SENT, FAILED = "claimed", "sent", "failed"
_SAME_STALL_WITHIN = 60.0  # seconds by which two reports of one stall may differ about its beginning
_REPEAT_INTERVAL = 3600.0  # seconds between two reports of one task's stalls
_MAX_ENTRIES = 100  # older ones are dropped


def wait_time(entries: Sequence[Entry], message: Message, channel: str, now: float) -> float | None:
    """Return in how many seconds a message may be sent by a channel: 0.0 is now, None is never, since it was sent or has failed."""
    times = [_wait_time(_find(entries, key, channel, message, now), now) for key in message.entry_keys]
    return min((seconds for seconds in times if seconds is not None), default=None)


def with_claim(entries: Sequence[Entry], message: Message, channel: str, now: float, seconds: float) -> list[Entry]:
    """Return the entries with a sender's claim on a message, which it tries to send for `seconds`."""
    return with_entry(entries, message, channel, {"at": now, "until": now + seconds, "state": CLAIMED})


def with_entry(entries: Sequence[Entry], message: Message, channel: str, fields: Entry) -> list[Entry]:
    """Return the entries with new ones for a message, which replace its others; `fields` are `state`, `at` and `words` or `until`."""
    keys = [_key(key, channel, message) for key in message.entry_keys]
    others = [entry for entry in entries if entry["key"] not in keys]
    return [*others, *({"key": key, "since": message.since, **fields} for key in keys)][-_MAX_ENTRIES:]


def has_entry(entries: Sequence[Entry], message: Message, channel: str) -> bool:
    """Return whether there is an entry for a message; not if another start has replaced the entries since it was claimed."""
    keys = [_key(key, channel, message) for key in message.entry_keys]
    return any(entry["key"] in keys for entry in entries)


def outcomes(entries: Sequence[Entry]) -> tuple[str, ...]:
    """Return the outcomes of sending for people, one line each."""
    return tuple(dict.fromkeys(str(entry["words"]) for entry in entries if entry.get("words")))


def _key(key: str, channel: str, message: Message) -> str:
    return f"{channel} {key} {int(message.started or 0)}"


def _find(entries: Sequence[Entry], key: str, channel: str, message: Message, now: float) -> Entry | None:
    """Return the entry of a message; None if there is none, or only one of another stall long ago."""
    match = next((entry for entry in entries if entry["key"] == _key(key, channel, message)), None)
    if match is None or key == "ended":
        return match
    is_same = abs(float(match["since"]) - message.since) <= _SAME_STALL_WITHIN
    return match if is_same or now - float(match["at"]) < _REPEAT_INTERVAL else None


def _wait_time(entry: Entry | None, now: float) -> float | None:
    if entry is None:
        return 0.0
    return max(0.0, float(entry["until"]) - now) if entry["state"] == CLAIMED else None
