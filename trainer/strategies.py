"""The strategies by name, and what sets them apart. Imports nothing: whoever watches tasks needs it, too."""

from __future__ import annotations

from typing import Literal

Strategy = Literal["single", "mirrored", "multi_worker_mirrored", "parameter_server", "manual"]

# The strategies that train a model; `manual` runs a program that says itself what runs where.
TRAINING: tuple[Strategy, ...] = ("single", "mirrored", "multi_worker_mirrored", "parameter_server")
# The strategies whose ps and workers are TensorFlow servers: they run what the chief sends them, until it tells them to stop.
SERVED: frozenset[Strategy] = frozenset({"parameter_server", "manual"})
