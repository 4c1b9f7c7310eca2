"""The variables that a user's function makes: made at its first call, found again by name at each later one.

A function that builds a model makes its variables in its body: with Keras layers, tf.Variable or tf.compat.v1.get_variable.
It is called again for each graph (training, evaluation, every replica), and must then find the variables that are
there. As in TensorFlow 1, names decide: those that Keras and variable scopes give, counted again in each call. On parameter
servers the values come from the servers, so a later call may be given others to compute with.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state

from trainer.events import listed
from trainer.workloads.errors import WorkloadError

# Attributes in which Keras counts the names it gave, and keeps the names of the layers it is in; variable scopes' store of variables.
_KERAS_NAMES, _KERAS_SCOPES, _STORE = "object_name_uids", "name_scope_stack", ("__variable_store",)
_AGGREGATIONS = {
    tf.VariableAggregation.MEAN: "mean",
    tf.VariableAggregation.SUM: "sum",
    tf.VariableAggregation.ONLY_FIRST_REPLICA: "only_first_replica",
}

Add = Callable[..., keras.Variable]


class OwnVariables:
    """The variables of one function. `add` makes one, as keras.Layer.add_weight does."""

    def __init__(self, add: Add, name: str) -> None:
        self._add, self._name = add, name
        self.made: dict[str, keras.Variable] = {}

    def first(self, run: Callable[[], Any]) -> Any:
        """Return run(), outside any graph, making its variables; they hold their start values afterwards.

        Raises:
            WorkloadError: it trains a variable that was made outside of it.
        """
        starts: dict[str, tf.Tensor] = {}

        def make(key: str, options: Mapping[str, Any]) -> Any:
            value = options["initial_value"]
            value = tf.convert_to_tensor(value() if callable(value) else value, dtype=options.get("dtype"))
            trainable = options.get("trainable") is not False and value.dtype.is_floating
            rest = "mean" if value.dtype.is_floating else "only_first_replica"
            self.made[key] = self._add(
                shape=value.shape,
                initializer=lambda _shape, dtype=None: value,  # noqa: ARG005 - Keras gives a name to it
                dtype=value.dtype.name,
                trainable=trainable,
                aggregation="none" if trainable else _AGGREGATIONS.get(options.get("aggregation"), rest),
                name=key.rpartition("/")[2],
            )
            starts[key] = value
            return self.made[key].value

        with tf.GradientTape() as tape, _creating(make, lambda following, options: following(**options)):
            result = run()
        # Where a variable is mirrored, each replica watches its own.
        own = {id(part) for variable in self.made.values() for part in (variable.value, *getattr(variable.value, "values", ()))}
        for variable in tape.watched_variables():
            if id(variable) not in own:
                raise WorkloadError(
                    f"{self._name} uses the variable {variable.name!r}, which was made outside of it and so would not be trained. "
                    "Make layers and variables inside of the function; it is called once for each graph, and finds them again by their names."
                )
        for key, value in starts.items():
            self.made[key].value.assign(value)
        return result

    def again(self, run: Callable[[], Any], given: Mapping[str, "CapturedVariable"] | None = None, *, all_of_them: bool) -> Any:
        """Return run(), which finds its variables again, or those in `given` in their place.

        Raises:
            WorkloadError: it makes a variable that the first call had not, or, with `all_of_them`, not each that this had.
        """
        met: set[str] = set()

        def find(key: str, _options: Mapping[str, Any]) -> Any:
            met.add(key)
            if key not in self.made:
                raise WorkloadError(
                    f"{self._name} makes the variable {key!r}, which its first call, in training mode, had not ({_listed(self.made)}). "
                    "Make the same layers and variables in each call and mode, with the same names."
                )
            return given[key] if given is not None else self.made[key].value

        with _creating(find, lambda _following, options: CapturedVariable(_start(options), str(options.get("name")))):
            result = run()
        if all_of_them and len(met) < len(self.made):
            raise WorkloadError(
                f"{self._name} made {_listed(self.made)} in its first call, and {_listed(set(self.made) - met)} not again. "
                "Make layers and variables again in each call; they find their values by their names."
            )
        return result


class CapturedVariable:
    """A value in the place of a variable: reads give it, an assignment changes what later reads give, here alone."""

    def __init__(self, value: tf.Tensor, name: str) -> None:
        self.current = value
        self.name = name
        self.shape, self.dtype, self.device = value.shape, value.dtype, ""

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        return tf.convert_to_tensor(self.current, dtype=dtype, name=name)

    def value(self) -> tf.Tensor:
        """Return the value, as tf.Variable does."""
        return self.current

    read_value = value

    def get_shape(self) -> tf.TensorShape:
        """Return the shape, as tf.Variable does."""
        return self.shape

    def assign(self, value: Any, *_: Any, **__: Any) -> "CapturedVariable":
        """Take another value, as tf.Variable does."""
        self.current = tf.ensure_shape(tf.cast(value, self.dtype), self.shape)
        return self

    def assign_add(self, delta: Any, *_: Any, **__: Any) -> "CapturedVariable":
        """Add to the value, as tf.Variable does."""
        return self.assign(self.current + tf.cast(delta, self.dtype))

    def assign_sub(self, delta: Any, *_: Any, **__: Any) -> "CapturedVariable":
        """Take from the value, as tf.Variable does."""
        return self.assign(self.current - tf.cast(delta, self.dtype))

    def __getitem__(self, index: Any) -> tf.Tensor:
        return self.current[index]


def _operator(name: str) -> Callable[..., Any]:
    def apply(self: CapturedVariable, *others: Any) -> Any:
        values = [other.current if isinstance(other, CapturedVariable) else other for other in others]
        return getattr(tf.Tensor, name)(self.current, *values)

    return apply


for _name in tf.Tensor.OVERLOADABLE_OPERATORS - {"__getitem__", "__eq__", "__ne__"}:
    setattr(CapturedVariable, _name, _operator(_name))


def _start(options: Mapping[str, Any]) -> tf.Tensor:
    value = options["initial_value"]
    return tf.convert_to_tensor(value() if callable(value) else value, dtype=options.get("dtype"))


@contextmanager
def _creating(own: Callable[[str, Mapping[str, Any]], Any], of_optimizers: Callable[[Any, Mapping[str, Any]], Any]) -> Iterator[None]:
    """Let `own` give each variable that is made inside, by its name in this call, and `of_optimizers` what optimizers count and keep."""
    counts: Counter[str] = Counter()
    inside = False

    def creator(following: Any, **options: Any) -> Any:
        nonlocal inside
        if inside:  # `own` makes one
            return following(**options)
        scopes = global_state.get_global_attribute(_KERAS_SCOPES) or []
        if any(isinstance(scope.caller, keras.optimizers.Optimizer) for scope in scopes):
            return of_optimizers(following, options)
        base = "/".join([*(scope.name for scope in scopes), options.get("name") or "Variable"])
        counts[base] += 1
        inside = True
        try:
            return own(base if counts[base] == 1 else f"{base}_{counts[base] - 1}", options)
        finally:
            inside = False

    # A scope of its own: MirroredStrategy tells get_variable to make none but in the first replica.
    scope = tf.compat.v1.VariableScope(reuse=False)
    with _fresh_names(), tf.compat.v1.variable_scope(scope, auxiliary_name_scope=False), tf.variable_creator_scope(creator):
        yield


@contextmanager
def _fresh_names() -> Iterator[None]:
    """Count names from the start inside, and as before afterwards."""
    names, scopes = (global_state.get_global_attribute(key) for key in (_KERAS_NAMES, _KERAS_SCOPES))
    store = tf.compat.v1.get_collection_ref(_STORE)
    stored = list(store)
    global_state.set_global_attribute(_KERAS_NAMES, defaultdict(int))
    global_state.set_global_attribute(_KERAS_SCOPES, [])
    store.clear()
    try:
        yield
    finally:
        global_state.set_global_attribute(_KERAS_NAMES, names)
        global_state.set_global_attribute(_KERAS_SCOPES, scopes)
        store[:] = stored


def _listed(names: Any) -> str:
    return listed(sorted(names), 8) or "none"
