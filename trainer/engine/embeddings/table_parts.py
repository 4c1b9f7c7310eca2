"""Large embedding layers that are updated by rows, as parts of checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tensorflow as tf

if TYPE_CHECKING:
    from trainer.engine.embeddings.table_files import TableFiles


@dataclass(frozen=True)
class TableParts:
    """The `parts` of a tf.train.Checkpoint beside its model, by name, and the `bytes` of the tables there. `row_files` streams those on servers."""

    parts: Mapping[str, tf.train.Checkpoint]
    bytes: int
    row_files: "TableFiles | None" = None
