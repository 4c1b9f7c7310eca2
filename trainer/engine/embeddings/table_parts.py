"""Large embedding layers that are updated by rows, as parts of checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import tensorflow as tf

if TYPE_CHECKING:
    from trainer.engine.checkpoints import InMemoryCheckpoint


class RowFiles(Protocol):
    """The rows of large embedding layers, which no machine holds all of, in checkpoints."""

    def take_first_rows(self) -> None:
        """Prepare for a checkpoint of everything but the rows."""

    def streamed(self, checkpoint: "InMemoryCheckpoint", saved: tf.train.Checkpoint) -> "InMemoryCheckpoint":
        """Return `checkpoint`, of `saved`, with rows, which are read while it is written."""

    def mismatch(self, path: str, saved: tf.train.Checkpoint) -> str:
        """Return how the rows in a checkpoint of `saved` differ from those of this model; nothing if they fit."""

    def restore(self, path: str, saved: tf.train.Checkpoint) -> None:
        """Load the rows of a checkpoint of `saved` that fits.

        Raises:
            PeerLostError: a ps is gone.
        """


@dataclass(frozen=True)
class TableParts:
    """The `parts` of a tf.train.Checkpoint beside its model, by name, and the `bytes` of the tables there. `rows` streams those on servers."""

    parts: Mapping[str, tf.train.Checkpoint]
    bytes: int
    rows: RowFiles | None = None
