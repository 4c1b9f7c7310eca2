"""Tables of large embedding layers that are whole in this process: a step reads and updates only the rows of its batch."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from trainer.engine import fused_updates, weight_decay
from trainer.engine.embeddings import layers, row_updates
from trainer.engine.embeddings.row_updates import RowHandle
from trainer.engine.embeddings.table_parts import TableParts
from trainer.engine.train_config import TrainConfig
from trainer.settings import Embeddings

# (gradients shaped like their variables, gradients of rows) -> (their means over all tasks, in that order, the seconds that this took)
MeanGradients = Callable[[Sequence[Any], Sequence[tf.IndexedSlices]], tuple[list[Any], tf.Tensor]]


@dataclass(frozen=True)
class _Rows:
    """A table that is trained, with the optimizer's slots, and whether its weights decay."""

    variable: tf.Variable
    slots: Mapping[str, tf.Variable]
    decays: bool


class LocalTables:
    """Trains a model whose large layers are updated by rows: see `of`. In checkpoints their slots are where those of sharded tables are."""

    blocked_while_saved = False

    def __init__(self, model: keras.Model, found: Sequence[keras.layers.Embedding], optimizer: keras.optimizers.Optimizer) -> None:
        self._optimizer, self._layers = optimizer, list(found)
        self._model, self._rule = model, row_updates.rule_of(optimizer, [layer.name for layer in found])
        starts = self._rule.slots(optimizer)
        self._rows: dict[int, _Rows] = {}  # by the id() of a layer's variable
        of_layers = {}
        for number, layer in enumerate(found):
            matrix = layer.embeddings
            slots = {
                name: tf.Variable(tf.fill(matrix.shape, tf.cast(start, matrix.dtype)), trainable=False)
                for name, start in (starts if layer.trainable else {}).items()
            }
            if layer.trainable:
                self._rows[id(matrix.value)] = _Rows(matrix.value, slots, weight_decay.applies(optimizer, matrix))
            of_layers[str(number)] = tf.train.Checkpoint(**slots)
            layers.gather_rows(layer)
        self._parts = {"tables": tf.train.Checkpoint(**of_layers)}
        optimizer.build([v for v in model.trainable_variables if id(v.value) not in self._rows])

    @classmethod
    def of(cls, model: keras.Model, optimizer: keras.optimizers.Optimizer, settings: Embeddings) -> "LocalTables | None":
        """Build the optimizer of a model with large layers, if it can update rows; else, or if there are none, build nothing and return None.

        Raises:
            WorkloadError: the settings name a layer that the model does not have.
        """
        large_layers = layers.large(model, settings)
        return cls(model, large_layers, optimizer) if large_layers and not row_updates.unsupported(optimizer) else None

    @property
    def variables(self) -> list[tf.Variable]:
        """Return the slots of all rows."""
        return [variable for rows in self._rows.values() for variable in rows.slots.values()]

    def described(self) -> str:
        """Return a notice about the tables."""
        return f"embedding layers updated by the rows that a step uses: {layers.described(self._layers)}"

    def translate_errors(self, _: TrainConfig) -> AbstractContextManager[None]:
        """Return a context that changes no errors: TensorFlow's own name an id outside of a table."""
        return nullcontext()

    def apply(self, gradients: Sequence[Any], mean_gradients: MeanGradients) -> tf.Tensor:
        """Update the model by one gradient for each trainable variable, None if it has none; return the seconds that their exchange took."""
        optimizer, variables = self._optimizer, self._model.trainable_variables  # a callback may have frozen some
        present = [(v, g) for v, g in zip(variables, gradients, strict=True) if g is not None]
        others = [v for v, _ in present if id(v.value) not in self._rows]
        dense = [g for v, g in present if id(v.value) not in self._rows]
        tables = [(self._rows[id(v.value)], g) for v, g in present if id(v.value) in self._rows]
        reduced, waited = mean_gradients(dense, [row_updates.deduplicated(gradient) for _, gradient in tables])
        # A row that two tasks have used occurs twice.
        means = [row_updates.deduplicated(mean) for mean in reduced[len(dense) :]]
        dense, values = row_updates.clipped(optimizer, reduced[: len(dense)], [mean.values for mean in means])
        rate, count = row_updates.rate_and_count(optimizer)
        for (rows, _), mean, gradient in zip(tables, means, values, strict=True):
            used = RowHandle(rows.variable, rows.slots, mean.indices)
            row_updates.update(self._rule, optimizer, used, gradient, rate, count, decays=rows.decays)
        fused_updates.apply(optimizer, dense, others)
        return waited

    def files(self) -> TableParts:
        """Return the parts of checkpoints beside the model: the slots of the tables."""
        return TableParts(self._parts, sum(int(v.shape.num_elements()) * int(v.dtype.size) for v in self.variables))
