"""The variables of a user's function: created in its first call, found again by name in each later one.

A function that builds a model creates its variables in its body: with Keras layers, tf.Variable or tf.compat.v1.get_variable.
It is called again for each graph (training, evaluation, every replica), and must then find its existing variables.
As in TensorFlow 1, it finds them by name: the names of Keras and variable scopes, numbered from the start in each call. On parameter
servers the values come from the servers, so a later call may be given values to compute with.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.random.seed_generator import global_seed_generator

from trainer.events import join_names
from trainer.workloads.errors import WorkloadError

# Keras's attributes with the counts of names and with the enclosing layers' scopes; variable scopes' store of variables.
_KERAS_NAMES, _KERAS_SCOPES, _STORE = "object_name_uids", "name_scope_stack", ("__variable_store",)
_AGGREGATIONS = {
    tf.VariableAggregation.MEAN: "mean",
    tf.VariableAggregation.SUM: "sum",
    tf.VariableAggregation.ONLY_FIRST_REPLICA: "only_first_replica",
}

Add = Callable[..., keras.Variable]


class FunctionVariables:
    """The variables of one function. `add` creates one, as keras.Layer.add_weight does."""

    def __init__(self, add: Add, name: str) -> None:
        self._add, self._name = add, name
        self.created: dict[str, keras.Variable] = {}

    def create(self, run: Callable[[], Any]) -> Any:
        """Call `run`, which creates its variables, outside any graph; reset these to their initial values and return its result.

        Raises:
            WorkloadError: it trains a variable that was created outside of it.
        """
        global_seed_generator()  # created here: it is not one of the function's variables
        initial_values: dict[str, tf.Tensor] = {}

        def create_variable(key: str, options: Mapping[str, Any]) -> Any:
            value = _initial_value(options)
            trainable = options.get("trainable") is not False and value.dtype.is_floating
            name = key.rpartition("/")[2]
            rest = "mean" if value.dtype.is_floating else "none" if name.startswith("seed_generator_state") else "only_first_replica"
            self.created[key] = self._add(
                shape=value.shape,
                initializer=lambda _shape, dtype=None: value,  # noqa: ARG005 - Keras passes it by name
                dtype=value.dtype.name,
                trainable=trainable,
                aggregation="none" if trainable else _AGGREGATIONS.get(options.get("aggregation"), rest),
                name=name,
            )
            initial_values[key] = value
            return self.created[key].value

        with tf.GradientTape() as tape, _creating(create_variable, lambda next_creator, options: next_creator(**options)):
            result = run()
        # Each replica watches its own copy of a mirrored variable.
        own = {id(part) for variable in self.created.values() for part in (variable.value, *getattr(variable.value, "values", ()))}
        for variable in tape.watched_variables():
            if id(variable) not in own:
                raise WorkloadError(
                    f"{self._name} uses the variable {variable.name!r}, which was created outside of it and so would not be trained. "
                    "Create layers and variables inside the function; it is called once for each graph, and finds them again by their names."
                )
        for key, value in initial_values.items():
            self.created[key].value.assign(value)
        return result

    def reuse(self, run: Callable[[], Any], given: Mapping[str, "StatelessVariable"] | None = None, *, require_all: bool) -> Any:
        """Return run(), which finds its variables again, or instead those in `given`.

        Raises:
            WorkloadError: it creates a variable that the first call did not, or, with `require_all`, lacks one of the first call.
        """
        used: set[str] = set()

        def find_variable(key: str, _options: Mapping[str, Any]) -> Any:
            used.add(key)
            if key not in self.created:
                raise WorkloadError(
                    f"{self._name} creates the variable {key!r}, which its first call, in training mode, did not ({_join_names(self.created)}). "
                    "Create the same layers and variables in each call and mode, with the same names."
                )
            return given[key] if given is not None else self.created[key].value

        with _creating(find_variable, lambda _next_creator, options: StatelessVariable(_initial_value(options), str(options.get("name")))):
            result = run()
        if require_all and len(used) < len(self.created):
            raise WorkloadError(
                f"{self._name} created {_join_names(self.created)} in its first call, but not {_join_names(set(self.created) - used)} in a later one. "
                "Create all layers and variables in each call; they find their values by their names."
            )
        return result


class StatelessVariable:
    """A value that replaces a variable: reads return it, and an assignment only changes the value of later reads."""

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

    def assign(self, value: Any, *_: Any, **__: Any) -> "StatelessVariable":
        """Set the value, as tf.Variable does."""
        self.current = tf.ensure_shape(tf.cast(value, self.dtype), self.shape)
        return self

    def assign_add(self, delta: Any, *_: Any, **__: Any) -> "StatelessVariable":
        """Add to the value, as tf.Variable does."""
        return self.assign(self.current + tf.cast(delta, self.dtype))

    def assign_sub(self, delta: Any, *_: Any, **__: Any) -> "StatelessVariable":
        """Subtract from the value, as tf.Variable does."""
        return self.assign(self.current - tf.cast(delta, self.dtype))

    def __getitem__(self, index: Any) -> tf.Tensor:
        return self.current[index]


def _operator(name: str) -> Callable[..., Any]:
    def apply(self: StatelessVariable, *others: Any) -> Any:
        values = [other.current if isinstance(other, StatelessVariable) else other for other in others]
        return getattr(tf.Tensor, name)(self.current, *values)

    return apply


for _name in tf.Tensor.OVERLOADABLE_OPERATORS - {"__getitem__", "__eq__", "__ne__"}:
    setattr(StatelessVariable, _name, _operator(_name))


def _initial_value(options: Mapping[str, Any]) -> tf.Tensor:
    value = options["initial_value"]
    return tf.convert_to_tensor(value() if callable(value) else value, dtype=options.get("dtype"))


@contextmanager
def _creating(
    create: Callable[[str, Mapping[str, Any]], Any], create_for_optimizer: Callable[[Any, Mapping[str, Any]], Any]
) -> Iterator[None]:
    """Within this context `create` creates each variable, given its name in this call; `create_for_optimizer` creates those of optimizers."""
    counts: Counter[str] = Counter()
    inside = False

    def creator(next_creator: Any, **options: Any) -> Any:
        nonlocal inside
        if inside:  # called by `create`
            return next_creator(**options)
        scopes = global_state.get_global_attribute(_KERAS_SCOPES) or []
        if any(isinstance(scope.caller, keras.optimizers.Optimizer) for scope in scopes):
            return create_for_optimizer(next_creator, options)
        base = "/".join([*(scope.name for scope in scopes), options.get("name") or "Variable"])
        counts[base] += 1
        inside = True
        try:
            return create(base if counts[base] == 1 else f"{base}_{counts[base] - 1}", options)
        finally:
            inside = False

    # A scope of its own: MirroredStrategy lets get_variable create variables only in the first replica.
    scope = tf.compat.v1.VariableScope(reuse=False)
    with _fresh_names(), tf.compat.v1.variable_scope(scope, auxiliary_name_scope=False), tf.variable_creator_scope(creator):
        yield


@contextmanager
def _fresh_names() -> Iterator[None]:
    """Number names from the start inside; restore the counts afterwards."""
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


def _join_names(names: Any) -> str:
    return join_names(sorted(names), 8) or "none"
