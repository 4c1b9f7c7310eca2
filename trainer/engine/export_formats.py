"""The formats of an exported model: a Keras file, compiled for plain Keras, and a SavedModel."""

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import keras

_LONGEST = 200  # characters of an error


def _save_keras(model: keras.Model, path: Path) -> str:
    with _fresh_optimizer(model) as left_out:
        model.save(str(path))
    return left_out


def _save_saved_model(model: keras.Model, path: Path) -> str:
    model.export(str(path), format="tf_saved_model", verbose=False)
    return ""


# Format -> what it is called in the directory, and what writes it and returns a notice of what it had to leave out.
FORMATS: dict[str, tuple[str, Callable[[keras.Model, Path], str]]] = {
    "keras": ("model.keras", _save_keras),
    "saved_model": ("saved_model", _save_saved_model),
}


@contextmanager
def _fresh_optimizer(model: keras.Model) -> Iterator[str]:
    """Let a compiled model have an optimizer inside that has taken no step: what is saved goes on from its weights alone.

    Yields a notice where the model is not compiled inside, as what its `compile` was given could not be read again; else nothing.
    """
    if not getattr(model, "compiled", False):
        yield ""
        return
    fresh, problem = _fresh(model)
    # Past Keras's own way of setting it, which would make it a part of the model's checkpoints.
    attributes = vars(model)
    own, attributes["optimizer"] = model.optimizer, fresh
    model.compiled = not problem
    try:
        yield f"the Keras file is exported without loss, metrics and optimizer: {problem}" if problem else ""
    finally:
        model.compiled, attributes["optimizer"] = True, own


def _fresh(model: keras.Model) -> tuple[keras.optimizers.Optimizer | None, str]:
    """Return a new optimizer like a compiled model's, or why what its `compile` was given cannot be saved."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras warns of a lambda
            given = json.dumps(model.get_compile_config(), default=str)
        if '"__lambda__"' in given:
            return None, "compile was given a lambda, which Keras does not load again; give it a function with a name"
        own = model.optimizer
        fresh = None if own is None else type(own).from_config(own.get_config())
        if fresh is not None:
            fresh.build(model.trainable_variables)
    except Exception as error:  # noqa: BLE001 - whatever a user's own loss or optimizer raises
        return None, f"{type(error).__name__}: {one_line(error)}"
    return fresh, ""


def one_line(error: Exception) -> str:
    """Return an error's words in one line that is not too long."""
    return " ".join(str(error).split())[:_LONGEST]  # Keras breaks its lines within sentences
