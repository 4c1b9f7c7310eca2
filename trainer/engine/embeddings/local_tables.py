"""Tables of large embedding layers that are whole in this process: a step reads and updates the rows of its batch alone."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from trainer.engine.byte_sizes import byte_size
from trainer.engine.embeddings import layers, row_updates
from trainer.engine.embeddings.row_updates import UsedRows
from trainer.engine.job import Job
from trainer.engine.parameter_server import fused_updates
from trainer.settings import Embeddings

if TYPE_CHECKING:
    from trainer.engine.checkpoints import Captured

# The means over all tasks of gradients, each shaped like its variable, and of rows, in that order; and the seconds that took.
Exchange = Callable[[Sequence[Any], Sequence[tf.IndexedSlices]], tuple[list[Any], tf.Tensor]]


class LocalTables:
    """Updates a model whose large layers have rows: see `of`. Checkpoints have the slots of rows where those of spread tables are."""

    elsewhere = moves_in_saves = False

    def __init__(self, model: keras.Model, found: Sequence[keras.layers.Embedding], optimizer: keras.optimizers.Optimizer) -> None:
        self._optimizer, self._layers = optimizer, list(found)
        self._rule, self._decays = row_updates.rule_of(optimizer, [layer.name for layer in found]), row_updates.decays(optimizer)
        self._variables = [layer.embeddings.value for layer in found if layer.trainable]
        places = {id(variable): place for place, variable in enumerate(self._variables)}
        self._places = [places.get(id(v.value)) for v in model.trainable_variables]
        self._others = [v for v, place in zip(model.trainable_variables, self._places, strict=True) if place is None]
        starts = self._rule.slots(optimizer)
        self._slots = [
            {slot: tf.Variable(tf.fill(v.shape, tf.cast(start, v.dtype)), trainable=False) for slot, start in starts.items()}
            for v in self._variables
        ]
        slots = iter(self._slots)
        of_layers = {str(i): tf.train.Checkpoint(**(next(slots) if layer.trainable else {})) for i, layer in enumerate(found)}
        self.parts = {"tables": tf.train.Checkpoint(**of_layers)}
        for layer in found:
            layers.gather_rows(layer)
        optimizer.build(self._others)

    @classmethod
    def of(cls, model: keras.Model, optimizer: keras.optimizers.Optimizer, settings: Embeddings) -> "LocalTables | None":
        """Build the optimizer of a model whose large layers' rows it can update; return None, and build nothing, where there are none.

        Raises:
            WorkloadError: the settings name a layer that is not there.
        """
        found = layers.large(model, settings)
        return cls(model, found, optimizer) if found and not row_updates.unsupported(optimizer) else None

    @property
    def variables(self) -> list[tf.Variable]:
        """Return the slots of all rows."""
        return [variable for slots in self._slots for variable in slots.values()]

    def described(self) -> str:
        """Return what to tell of the tables."""
        names = ", ".join(f"{one.name} ({one.input_dim:,} x {one.output_dim})" for one in self._layers)
        return f"embedding layers updated by the rows that a step uses: {names}; {byte_size(self.bytes)} of the optimizer's slots"

    def errors_told(self, _: Job) -> AbstractContextManager[None]:
        """Return what leaves errors as they are: TensorFlow names an id outside of a table."""
        return nullcontext()

    def apply(self, gradients: Sequence[Any], exchange: Exchange) -> tf.Tensor:
        """Update the model by one gradient a trainable variable of it; return the seconds of the exchange."""
        optimizer = self._optimizer
        dense = [g for g, place in zip(gradients, self._places, strict=True) if place is None]
        rows = [row_updates.summed(g) for g, place in zip(gradients, self._places, strict=True) if place is not None]
        together, waited = exchange(dense, rows)
        # Of several tasks: a row that two of them used is there twice.
        means = [row_updates.summed(one) for one in together[len(dense) :]]
        others, values = row_updates.clipped(optimizer, together[: len(dense)], [one.values for one in means])
        rate, count = tf.convert_to_tensor(optimizer.learning_rate), tf.cast(optimizer.iterations + 1, tf.float32)
        order = [place for place in self._places if place is not None]
        for place, mean, gradient in zip(order, means, values, strict=True):
            used = UsedRows(self._variables[place], self._slots[place], mean.indices)
            row_updates.update(self._rule, optimizer, used, gradient, rate, count, decays=self._decays)
        if others or fused_updates.fuses(optimizer, self._others):
            fused_updates.apply(optimizer, others, self._others)
        else:  # Keras counts no step without gradients
            optimizer.iterations.assign_add(1)
        return waited

    # As parts of checkpoints: see RowFiles. The rows themselves are in the model.

    def files(self) -> "LocalTables":
        """Return what a checkpoint has of the tables beside the model."""
        return self

    @property
    def bytes(self) -> int:
        """Return what that takes on a disk."""
        return sum(int(v.shape.num_elements()) * int(v.dtype.size) for v in self.variables)

    def mark(self) -> None:
        """Do nothing: all of it is at hand."""

    def streamed(self, captured: "Captured", _: tf.train.Checkpoint) -> "Captured":
        """Return `captured`, which has all of it."""
        return captured

    def misfit(self, *_: Any) -> str:
        """Return nothing: TensorFlow compares all shapes."""
        return ""

    def restore(self, *_: Any) -> None:
        """Do nothing: TensorFlow has restored all of it."""
