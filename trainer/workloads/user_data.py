"""The examples of a user's module, `train_data` and `eval_data`: arrays, or a tf.data.Dataset of examples.

Each is a value or a function that returns one: `(inputs, targets)` or `(inputs, targets, sample_weights)`. Inputs and
targets are arrays or nests (dict, tuple) of arrays with the same number of rows; a Dataset gives single examples of that form, or batches
of them, which are unbatched.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.workloads import in_memory, pipeline
from trainer.workloads.class_weight import ClassWeight
from trainer.workloads.errors import WorkloadError
from trainer.workloads.protocol import Shard
from trainer.workloads.seeding import seeded
from trainer.workloads.user_call import CallArguments, call, described

_EXPECTED = "expected arrays (inputs, targets) or (inputs, targets, sample_weights), or a tf.data.Dataset of such examples"
_PARTS = (2, 3)  # inputs, targets and optional sample weights


class UserData:
    """The examples of a module's `train_data` or `eval_data`, which are read when first needed: then `is_read` is True.

    With sample weights or a `class_weight`, targets are {"targets": ..., "weights": ...}; `weighted` says so.
    """

    def __init__(
        self, source: Any, arguments: CallArguments, name: str, class_weight: ClassWeight | None = None, training: "UserData | None" = None
    ) -> None:
        """`training`: the training set, with which these examples must not overlap."""
        self._source, self._arguments, self._class_weight = source, arguments, class_weight
        self._name = f"{name} of {arguments.workload}: {described(source)}" if callable(source) else f"{name} of {arguments.workload}"
        self._arrays: tuple[Any, ...] | None = None
        self.inputs: list[np.ndarray] = []  # if they are arrays
        self._properties: pipeline.DatasetProperties | None = None
        self._count: int | None = None
        self._training = training
        self.is_read = self.weighted = False

    def batches(self, shard: Shard) -> tf.data.Dataset:
        """Return endless training batches; see Workload.train_data."""
        self._read_once()
        # The workers of parameter_server have no position in their data to continue at: there `start` is a tensor.
        if self._properties is not None and not tf.is_tensor(shard.start) and (difference := self._properties.after_resume(shard)):
            print(f"{self._name} {difference}", flush=True)
        return self._dataset(
            lambda inputs, targets: in_memory.batches(inputs, targets, shard),
            lambda examples, properties: pipeline.batches(examples, properties, shard),
        )

    def once(self, batch_size: int) -> tf.data.Dataset:
        """Return the examples once, in batches; see Workload.eval_data."""
        return self._dataset(
            lambda inputs, targets: in_memory.once(inputs, targets, batch_size),
            lambda examples, properties: pipeline.once(examples, properties, batch_size),
        )

    def count(self) -> int | None:
        """Return how many examples a pass of `fit` has, those of `.repeat(n)` n times; None if it is unknown."""
        self._read_once()
        return self._count

    def first(self, size: int) -> tuple[Any, Any]:
        """Return one batch of the first examples, at most `size` of them."""
        with tf.init_scope():
            dataset = self._dataset(
                lambda inputs, targets: in_memory.once(inputs, targets, size),
                lambda examples, _properties: pipeline.first(examples, size),
            )
            batch: tuple[Any, Any] = next(iter(dataset))
        return batch

    def _dataset(
        self,
        of_arrays: Callable[[Any, Any], tf.data.Dataset],
        of_examples: Callable[[tf.data.Dataset, pipeline.DatasetProperties], tf.data.Dataset],
    ) -> tf.data.Dataset:
        self._read_once()
        if self._arrays is not None:
            try:
                return of_arrays(*_paired(self._arrays))
            except ValueError as error:
                raise WorkloadError(f"{self._name}: {error}") from error
        assert self._properties is not None  # noqa: S101 - set with `is_read`
        try:
            return of_examples(self._examples(self._properties), self._properties)
        except WorkloadError as error:
            raise WorkloadError(f"{self._name}: {error}") from error

    def _read_once(self) -> None:
        if not self.is_read:
            with tf.init_scope():
                self._inspect(self._value())
            self.is_read = True

    def _value(self) -> Any:
        if not callable(self._source):
            return self._source
        with seeded(self._arguments.seed):
            return call(self._source, self._arguments)

    def _inspect(self, value: Any) -> None:
        """Set the arrays, or the properties of a Dataset, and what follows from them. Raises WorkloadError if the form is wrong."""
        if isinstance(value, tf.data.Dataset):
            self._inspect_dataset(value)
        elif isinstance(value, tuple | list) and len(value) in _PARTS:
            inputs, targets, *weights = (tf.nest.map_structure(self._array, _nest(part)) for part in value)
            try:
                self._count = in_memory.count(inputs, (targets, weights))
            except ValueError as error:
                raise WorkloadError(f"{self._name}: {error}") from error
            if self._class_weight is not None:
                weights = [self._class_weight.of_rows(targets, weights[0] if weights else None)]
            self.weighted = bool(weights)
            self._arrays, self.inputs = (inputs, targets, *weights), tf.nest.flatten(inputs)
            if callable(self._source) and self._training is not None and self._begins_as(self._training):
                print(
                    f"{self._name} begins with the rows of train_data. If both functions draw their examples, they draw the same: give the random "
                    "numbers of eval_data a seed of their own",
                    flush=True,
                )
        else:
            shown = f"{len(value)} parts" if isinstance(value, tuple | list) else type(value).__name__
            raise WorkloadError(f"{self._name} gives {shown}; {_EXPECTED}")

    def _inspect_dataset(self, value: tf.data.Dataset) -> None:
        spec = value.element_spec
        if not isinstance(spec, tuple) or len(spec) not in _PARTS:
            raise WorkloadError(f"{self._name} gives a Dataset of {spec}; {_EXPECTED}")
        self.weighted = len(spec) == max(_PARTS) or self._class_weight is not None
        if pipeline.is_batched(value):
            size = "train.batch_size" if self._name.startswith("train_data") else "train.evaluate.batch_size"
            print(
                f"{self._name} gives batches: they are unbatched, and batched again by {size} for each replica. "
                "If each batch is one example, add .batch(1)",
                flush=True,
            )
        elif pipeline.may_be_batched(value):
            print(
                f"{self._name} gives rows of unknown length: each is taken as one example. If they are batches, add .unbatch()",
                flush=True,
            )
        if pipeline.drops_file_cache(value):
            print(
                f"{self._name} caches batches, or shuffled examples, in a file. That file is not used, since the trainer splits batches and "
                "shuffles. Put .cache(file) before .shuffle and .batch",
                flush=True,
            )
        examples = pipeline.examples_of(value)
        if self._class_weight is not None:
            _, targets, *weights = examples.element_spec
            self._class_weight.check(targets, weights[0] if weights else None)
        self._properties = pipeline.inspect(examples, self._name)
        self._count = None if self._properties.count is None else self._properties.count * pipeline.repeat_count(value)

    def _begins_as(self, other: "UserData") -> bool:
        """Return whether the first inputs are the other's, as far as both have been read."""
        rows = min((len(array) for array in (*self.inputs, *other.inputs)), default=0)
        pairs = zip(self.inputs, other.inputs, strict=False)
        return rows > 0 and len(self.inputs) == len(other.inputs) and all(np.array_equal(a[:rows], b[:rows]) for a, b in pairs)

    def _array(self, value: Any) -> np.ndarray:
        try:
            array = np.asarray(value.values if isinstance(value, _Leaf) else value)
        except ValueError:  # rows of different length
            array = np.empty(1, object)
        # Strings of pandas and of TensorFlow are objects; NumPy's own type would make each as long as the longest.
        objects = array.dtype == object and not all(isinstance(one, str | bytes) for one in array.flat)
        if objects or array.ndim == 0:
            what = "rows of different length, or Python objects" if objects else "a single value"
            raise WorkloadError(
                f"{self._name} gives an array of {what}; expected numbers or strings, one row an example; pad them to one shape"
            )
        try:
            tf.as_dtype(array.dtype)
        except TypeError:  # such as times
            raise WorkloadError(f"{self._name} gives an array of {array.dtype}; expected numbers or strings, one row an example") from None
        # Keras computes with float32; float64 would only double memory and traffic.
        return array.astype(np.float32) if array.dtype == np.float64 else array

    def _examples(self, properties: pipeline.DatasetProperties) -> tf.data.Dataset:
        if not tf.executing_eagerly():  # parameter_server: the dataset is created again in a graph that workers run
            if properties.python:
                raise WorkloadError(
                    "the Dataset runs Python functions (from_generator, py_function, numpy_function), but the workers of parameter_server "
                    "run no Python. Return arrays, write the examples to TFRecord files and read those with tf.data, or train with another strategy."
                )
            if not callable(self._source):
                raise WorkloadError(
                    "it is a Dataset that only exists in the chief's memory, but the workers of parameter_server read their own data. "
                    "Make it a function that returns the Dataset."
                )
        try:
            # The function is called each time: a Dataset with a shuffle has another order each time that it is read, so a split by .take and .skip would be another.
            examples = pipeline.uncached(pipeline.examples_of(self._value()), properties)  # before the `map` that adds weights
        except ValueError as error:
            if "larger than 2GB" not in str(error):
                raise
            raise WorkloadError(
                "the Dataset has an array of 2 GB or more: TensorFlow cannot put it into the graph that workers of parameter_server run. "
                "Return the arrays instead of the Dataset, or read files with tf.data."
            ) from error
        if not self.weighted:
            return examples
        of_class = self._class_weight

        def with_weights(inputs: Any, targets: Any, weights: Any = None) -> tuple[Any, Any]:
            return inputs, {"targets": targets, "weights": weights if of_class is None else of_class.of_example(targets, weights)}

        return examples.map(with_weights)


def _paired(parts: tuple[Any, ...]) -> tuple[Any, Any]:
    inputs, targets, *weights = parts
    return inputs, {"targets": targets, "weights": weights[0]} if weights else targets


def _nest(part: Any) -> Any:
    """Return a nest of dicts and tuples, since tf.data knows no lists: a list becomes one array; a list of arrays becomes a tuple."""
    if isinstance(part, dict):
        return {name: _nest(one) for name, one in part.items()}
    if isinstance(part, tuple) or (isinstance(part, list) and any(isinstance(one, np.ndarray | tf.Tensor) for one in part)):
        return tuple(_nest(one) for one in part)
    return _Leaf(part) if isinstance(part, list) else part


class _Leaf:
    """A list that is one array."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values
