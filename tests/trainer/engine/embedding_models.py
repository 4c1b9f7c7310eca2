"""Keras models with embedding layers, as users write them, and data for each; the tests of tables name them in `train.workload`."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

ROWS, DIMENSION, EXAMPLES = 23, 4, 160
_WORDS = [f"word-{number}" for number in range(20)]


def start(rows: int = ROWS, dimension: int = DIMENSION, seed: int = 5) -> keras.initializers.Constant:
    """Return an initializer that gives each model the same rows."""
    return keras.initializers.Constant(np.random.default_rng(seed).normal(size=(rows, dimension)).astype(np.float32))


def table(name: str, rows: int = ROWS, dimension: int = DIMENSION, **options: Any) -> keras.layers.Embedding:
    """Return a layer with these rows."""
    return keras.layers.Embedding(rows, dimension, embeddings_initializer=start(rows, dimension), name=name, **options)


def functional(params: dict[str, Any]) -> keras.Model:
    """Two inputs of one table, two other tables, one of another dimension."""
    user, items = keras.Input([], dtype="int64", name="user"), keras.Input([3], dtype="int64", name="items")
    shared = table("shared")
    parts = [shared(user), keras.layers.GlobalAveragePooling1D()(shared(items)), table("wide", dimension=1)(user)]
    parts.append(keras.layers.Flatten()(table("other", rows=31)(items)))
    return _compiled(keras.Model({"user": user, "items": items}, _head(keras.layers.Concatenate()(parts))), params)


def sequential(params: dict[str, Any]) -> keras.Model:
    """Padded words, with the padding masked."""
    pooled = keras.layers.GlobalAveragePooling1D()
    return _compiled(
        keras.Sequential([keras.Input([3], dtype="int32"), table("words", mask_zero=True), pooled, _dense(4), _dense(1)]), params
    )


class Towers(keras.Model):
    """A user's tower, which the loss compares with rows of items that it looks up itself."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = table("of_users"), table("of_items")
        self.tower = keras.layers.Dense(DIMENSION, kernel_initializer=keras.initializers.RandomUniform(seed=6))

    def call(self, inputs: Any) -> Any:
        return self.tower(self.users(inputs["user"]))

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *_: Any, **__: Any) -> Any:
        return keras.ops.mean(keras.ops.square(y[:, 0] - keras.ops.sum(y_pred * self.items(x["item"]), axis=-1)))


def towers(params: dict[str, Any]) -> keras.Model:
    """A model whose loss needs more than its outputs."""
    return _compiled(Towers(), params)


def preprocessed(params: dict[str, Any]) -> keras.Model:
    """Words and numbers, from which layers compute ids."""
    word, number = keras.Input([], dtype="string", name="word"), keras.Input([], dtype="int64", name="number")
    ids = [
        keras.layers.StringLookup(vocabulary=_WORDS)(word),
        keras.layers.IntegerLookup(vocabulary=list(range(20)))(number),
        keras.layers.Hashing(ROWS)(word),
        keras.layers.HashedCrossing(ROWS)((word, number)),
    ]
    rows = [table(f"t{index}")(column) for index, column in enumerate(ids)]
    return _compiled(keras.Model({"word": word, "number": number}, _head(keras.layers.Concatenate()(rows))), params)


def ragged(params: dict[str, Any]) -> keras.Model:
    """Lists of different lengths, made in the model, and a Lambda that pools them."""
    items = keras.Input([3], dtype="int64")

    def pool(rows: Any) -> Any:
        ragged_rows = tf.RaggedTensor.from_tensor(rows, padding=tf.zeros([rows.shape[-1]]))
        return tf.reduce_sum(ragged_rows, axis=1)

    pooled = keras.layers.Lambda(pool, output_shape=(DIMENSION,))(table("items")(items))
    return _compiled(keras.Model(items, _head(pooled)), params)


class Decoder(keras.layers.Layer):
    """Looks up the rows of an example all at once in a training step, and in a loop in an evaluation."""

    def __init__(self, rows: keras.layers.Embedding) -> None:
        super().__init__()
        self.rows = rows

    def call(self, ids: Any, training: bool = False) -> Any:
        return self.rows(ids) if training else tf.map_fn(self.rows, ids, fn_output_signature=tf.float32)

    def compute_output_shape(self, shape: Any) -> Any:
        return (*shape, DIMENSION)


def looped(params: dict[str, Any]) -> keras.Model:
    """A table whose rows an evaluation cannot look up at once."""
    items = keras.Input([3], dtype="int32")
    return _compiled(keras.Model(items, _head(keras.layers.Flatten()(Decoder(table("decoded"))(items)))), params)


def alone(params: dict[str, Any]) -> keras.Model:
    """Only tables: the dot product of a user and an item."""
    user, item = keras.Input([], dtype="int64", name="user"), keras.Input([], dtype="int64", name="item")
    product = keras.layers.Dot(axes=1)([table("users")(user), table("all_items")(item)])
    return _compiled(keras.Model({"user": user, "item": item}, product), params)


def drawn(params: dict[str, Any]) -> keras.Model:
    """A table with random rows, larger than the block that is drawn at once."""
    user = keras.Input([], dtype="int64")
    initializer = keras.initializers.get(params["initializer"])
    return _compiled(keras.Model(user, _head(keras.layers.Embedding(5001, 4, initializer, name="drawn")(user))), params)


def large(params: dict[str, Any]) -> keras.Model:
    """A table of 51 MB, or of `rows` rows of 128 bytes."""
    user = keras.Input([], dtype="int64")
    return _compiled(keras.Model(user, _head(keras.layers.Embedding(params.get("rows", 400_000), 32, name="large")(user))), params)


def few(params: dict[str, Any]) -> keras.Model:
    """A table whose rows are all in each batch."""
    items = keras.Input([3], dtype="int64")
    return _compiled(keras.Model(items, _head(keras.layers.Flatten()(table("few", rows=6)(items % 6)))), params)


def frozen(params: dict[str, Any]) -> keras.Model:
    """A table that is not trained beside one that is."""
    user = keras.Input([], dtype="int64")
    rows = keras.layers.Concatenate()([table("fixed", trainable=False)(user), table("learned")(user)])
    return _compiled(keras.Model(user, _head(rows)), params)


def given(params: dict[str, Any]) -> keras.Model:
    """Tables that are not trained, one of given rows and one with an initializer, and one variable that is."""
    user = keras.Input([], dtype="int64")
    learned = keras.layers.Dense(1, use_bias=False, kernel_initializer=keras.initializers.RandomUniform(seed=6))
    rows = keras.layers.Embedding(ROWS, DIMENSION, weights=[start().value], trainable=False, name="given")
    return _compiled(keras.Model(user, learned(rows(user) + table("drawn", trainable=False)(user))), params)


class Normed(keras.layers.Embedding):
    """A layer whose rows have length 1."""

    @property
    def embeddings(self) -> Any:
        return keras.ops.normalize(super().embeddings)


class Spare(keras.Model):
    """A model with a layer that it does not use, and another one of a subclass of Embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.spare, self.used, self.normed = table("spare"), table("used"), Normed(ROWS, DIMENSION, name="normed")
        self.head = keras.layers.Dense(1)

    def build(self, _: Any) -> None:
        for layer in (self.used, self.normed, self.head):
            layer.build((None, DIMENSION))
        self.built = True

    def call(self, inputs: Any) -> Any:
        return self.head(self.used(inputs) + self.normed(inputs))


def spare(params: dict[str, Any]) -> keras.Model:
    """A model with a layer that is never built."""
    return _compiled(Spare(), params)


def outside(params: dict[str, Any]) -> keras.Model:
    """A table that is too small for its ids."""
    user = keras.Input([], dtype="int64")
    return _compiled(keras.Model(user, _head(table("small", rows=10)(user))), params)


def too_large(params: dict[str, Any]) -> keras.Model:
    """A table that is too large for any machine."""
    user = keras.Input([], dtype="int64")
    return _compiled(keras.Model(user, _head(keras.layers.Embedding(10**12, 4, name="huge")(user))), params)


def train_data(params: dict[str, Any]) -> Any:
    """Return the inputs of the model that `params` name, and targets."""
    generator = np.random.default_rng(1)
    user, items = generator.integers(0, ROWS, EXAMPLES), generator.integers(0, ROWS, (EXAMPLES, 3))
    word = np.array(_WORDS)[generator.integers(0, len(_WORDS), EXAMPLES)]
    inputs: dict[str, Callable[[], Any]] = {
        "functional": lambda: {"user": user, "items": items},
        "preprocessed": lambda: {"word": word, "number": user},
        "towers": lambda: {"user": user, "item": items[:, 0]},
        "alone": lambda: {"user": user, "item": items[:, 0]},
        "sequential": lambda: items.astype(np.int32),
        "ragged": lambda: items,
        "few": lambda: items,
        "looped": lambda: items.astype(np.int32),
        "drawn": lambda: user,
        "large": lambda: user,
        "frozen": lambda: user,
        "outside": lambda: user,
        "too_large": lambda: user,
        "given": lambda: user,
        "spare": lambda: user,
    }
    targets = generator.normal(size=(EXAMPLES, 1)).astype(np.float32)
    return inputs[params["model"]](), targets


eval_data = train_data


def _dense(units: int) -> keras.layers.Dense:
    return keras.layers.Dense(units, kernel_initializer=keras.initializers.RandomUniform(seed=3))


def _head(rows: Any) -> Any:
    return _dense(1)(keras.layers.Dense(5, activation="tanh", kernel_initializer=keras.initializers.RandomUniform(seed=4))(rows))


def _compiled(model: keras.Model, params: dict[str, Any]) -> keras.Model:
    optimizer, arguments = params.get("optimizer", "SGD"), params.get("arguments", {})
    model.compile(optimizer=getattr(keras.optimizers, optimizer)(learning_rate=0.1, **arguments), loss="mse", metrics=["mae"])
    return model
