"""Models that are saved to be exported: as a Keras file, compiled for plain Keras, and as a SavedModel."""

import json
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import keras
import tensorflow as tf

from trainer.engine.session import PeerLostError

_MAX_CHARACTERS = 200  # characters of an error
Result = TypeVar("Result")


def _save_keras(model: keras.Model, path: Path) -> str:
    with _fresh_optimizer(model) as left_out:
        model.save(str(path))
    return left_out


def _save_saved_model(model: keras.Model, path: Path) -> str:
    model.export(str(path), format="tf_saved_model", verbose=False)
    return ""


# Format -> its file's name in the directory, and a function that writes it and returns a notice of the parts that it left out.
FORMATS: dict[str, tuple[str, Callable[[keras.Model, Path], str]]] = {
    "keras": ("model.keras", _save_keras),
    "saved_model": ("saved_model", _save_saved_model),
}


class SavedFiles:
    """A model in `formats`, in the task's temporary directory."""

    can_wait = True

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="export-"))  # the parent process removes it if this one is killed
        self.formats: list[str] = []

    def add(self, name: str, model: keras.Model, notify: Callable[[str], None]) -> None:
        """Save the model in one more format, if that supports it; see save_if_possible."""
        file, write_format = FORMATS[name]
        left_out = save_if_possible(name, lambda: write_format(model, self._directory / file), notify)
        if left_out is None:
            _remove(self._directory / file)
            return
        self.formats.append(name)
        if left_out:
            notify(left_out)

    @property
    def bytes(self) -> int:
        """Return its size on a disk."""
        return sum(file.stat().st_size for file in self._directory.rglob("*"))

    def write(self, destination: Path) -> None:
        """Copy it into a directory. Raises OSError: the disk does not take it."""
        for source in sorted(self._directory.rglob("*")):
            copy = destination / source.relative_to(self._directory)
            if source.is_dir():
                copy.mkdir(exist_ok=True)
            else:
                shutil.copyfile(source, copy)

    def discard(self) -> None:
        """Remove it."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def blocks_training(self, _: Callable[[], bool]) -> bool:
        """Return False: training continues while it is written."""
        return False


def save(model: keras.Model, formats: Sequence[str], notify: Callable[[str], None]) -> SavedFiles | None:
    """Save a model in those of `formats` that support it, and `notify` of the others; return None if none does.

    Raises:
        OSError: the temporary directory does not take it.
    """
    saved = SavedFiles()
    try:
        for name in formats:
            saved.add(name, model, notify)
    except OSError:
        saved.discard()
        raise
    if saved.formats:
        return saved
    saved.discard()
    return None


def save_if_possible(name: str, save: Callable[[], Result], notify: Callable[[str], None]) -> Result | None:
    """Return the result of `save`. If the model's own code raises, `notify` why it cannot be saved in the format `name`, and return None.

    Raises:
        OSError: there is no space for it, or the system reports another error.
        PeerLostError: a server is gone that has a part of it.
    """
    try:
        return save()
    except (OSError, PeerLostError):
        raise
    except tf.errors.OpError as error:  # TensorFlow writes a SavedModel, and has errors of its own
        raise OSError(one_line(error)) from error
    except Exception as error:  # noqa: BLE001 - a user's own layer may raise any error
        why = f"{type(error).__name__}: {one_line(error)}"
        notify(f"the model cannot be exported as {name}: {why}; train.export.formats chooses the formats")
        return None


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _fresh_optimizer(model: keras.Model) -> Iterator[str]:
    """Give a compiled model a new optimizer inside: training of the saved model continues from the weights only.

    Yields a notice if the model is not compiled inside, because the arguments of its `compile` could not be loaded again; else nothing.
    """
    if not getattr(model, "compiled", False):
        yield ""
        return
    fresh, problem = _fresh(model)
    # Bypasses Keras, which would make it a part of the model's checkpoints.
    attributes = vars(model)
    own, attributes["optimizer"] = model.optimizer, fresh
    model.compiled = not problem
    try:
        yield f"the Keras file is exported without loss, metrics and optimizer: {problem}" if problem else ""
    finally:
        model.compiled, attributes["optimizer"] = True, own


def _fresh(model: keras.Model) -> tuple[keras.optimizers.Optimizer | None, str]:
    """Return a new optimizer like a compiled model's, or why the arguments of its `compile` cannot be saved."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras warns of a lambda
            config = json.dumps(model.get_compile_config(), default=str)
        if '"__lambda__"' in config:
            return None, "compile was given a lambda, which Keras does not load again; give it a function with a name"
        own = model.optimizer
        fresh = None if own is None else type(own).from_config(own.get_config())
        if fresh is not None:
            fresh.build(model.trainable_variables)
    except Exception as error:  # noqa: BLE001 - a user's own loss or optimizer may raise any error
        return None, f"{type(error).__name__}: {one_line(error)}"
    return fresh, ""


def one_line(error: Exception) -> str:
    """Return an error's message in one line, cut to a limit."""
    return " ".join(str(error).split())[:_MAX_CHARACTERS]  # Keras breaks its lines within sentences
