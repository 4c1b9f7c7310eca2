"""A description of a stop for people: the trainer saves a checkpoint, a user's own program decides by itself."""

from collections.abc import Mapping
from typing import Any

from launcher.spec.quantities import parse_duration


def stop_action(spec: Mapping[str, Any] | None) -> str:
    """Return what a stop does first. `spec` is the run's, as dumped, and None where it is not known."""
    if not spec or spec.get("train"):
        return "saving a checkpoint"
    return f"asking your program to stop, up to {parse_duration(spec['limits']['grace_period']):g} s"
