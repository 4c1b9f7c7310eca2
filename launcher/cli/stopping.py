"""A description of a stop for people: the trainer saves a checkpoint, a user's program does what it chooses."""

from collections.abc import Mapping
from typing import Any

from launcher.spec.quantities import parse_duration


def stop_action(spec: Mapping[str, Any] | None) -> str:
    """Return the first action of a stop, as a phrase. `spec` is the run's, as dumped, or None if not known."""
    if not spec or spec.get("train"):
        return "saving a checkpoint"
    return f"asking your program to stop, up to {parse_duration(spec['limits']['grace_period']):g} s"
