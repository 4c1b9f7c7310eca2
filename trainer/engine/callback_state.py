"""The state of callbacks as bytes for a checkpoint: their simple attributes, without pickle.

Simple values are numbers, texts, None, NumPy arrays, and lists, tuples and dicts of these. The bytes are an .npz file: arrays by number, and
`text`, JSON in which {"array": n} stands for an array. An attribute is saved if it has changed since the callback was constructed, or
since training began. It is restored only if the constructor has set the same initial value (arrays are not compared): an argument that the
user changed between two starts of a run takes precedence.
"""

import hashlib
import io
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

_OF_KERAS = frozenset({"_model", "model", "params", "_params"})
# Class of a callback -> attributes that it computes itself after each start.
_DERIVED: dict[type, frozenset[str]] = {
    keras.callbacks.CSVLogger: frozenset({"append", "append_header"}),
    keras.callbacks.EarlyStopping: frozenset({"min_delta"}),  # its sign, with the function that compares
    keras.callbacks.ReduceLROnPlateau: frozenset({"min_delta"}),
}
_TEXT = "text"
_KINDS = "biufc"  # of NumPy's types of numbers
_EXTENSION_TYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2")  # types of weights that another package adds to NumPy
_NOT_SIMPLE = object()


class TrackedAttributes:
    """The attributes of some callbacks, first read right after their construction."""

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        self._callbacks = list(callbacks)
        self._names = _names(self._callbacks)
        self._initial = self._current()
        self._at_begin = self._initial

    def mark_begin(self) -> None:
        """Read the attributes again, after `on_train_begin`."""
        self._at_begin = self._current()

    def arguments_digest(self) -> str:
        """Return a digest of the simple values that the callbacks were constructed with."""
        initial = {
            name: {key: _to_json(_plain(value), []) for key, value in one.items()}
            for name, one in zip(self._names, self._initial, strict=True)
        }
        return hashlib.sha256(json.dumps(initial, sort_keys=True).encode()).hexdigest()

    def serialize(self, **extra: Any) -> bytes:
        """Return the state to save, with `extra` simple values."""
        arrays: list[np.ndarray] = []
        saved = {}
        for name, now, initial, at_begin in zip(self._names, self._current(), self._initial, self._at_begin, strict=True):
            changed = [key for key, value in now.items() if not (_same(value, initial.get(key)) and _same(value, at_begin.get(key)))]
            saved[name] = {key: [_to_json(now[key], arrays), _to_json(_plain(initial.get(key)), arrays)] for key in changed}
        text = json.dumps({"callbacks": saved, **extra})
        file = io.BytesIO()
        named: dict[str, Any] = {_TEXT: np.frombuffer(text.encode(), np.uint8), **{str(n): array for n, array in enumerate(arrays)}}
        np.savez(file, **named)
        return file.getvalue()

    def restore(self, serialized: bytes) -> None:
        """Restore what `serialize` saved of callbacks of the same class and position."""
        saved, arrays = _deserialize(serialized)
        for name, callback, initial in zip(self._names, self._callbacks, self._initial, strict=True):
            for key, (value, saved_initial) in saved["callbacks"].get(name, {}).items():
                if _same(_from_json(saved_initial, arrays), _plain(initial.get(key))):
                    _set_attribute(callback, key, _from_json(value, arrays))

    def _current(self) -> list[dict[str, Any]]:
        return [_attributes(callback) for callback in self._callbacks]


def extra_values(serialized: bytes) -> dict[str, Any]:
    """Return the `extra` values that were given to `serialize`."""
    saved, _ = _deserialize(serialized)
    return {key: value for key, value in saved.items() if key != "callbacks"}


def _deserialize(serialized: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    with np.load(io.BytesIO(serialized), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return json.loads(arrays.pop(_TEXT).tobytes().decode()), arrays


def _names(callbacks: Sequence[keras.callbacks.Callback]) -> list[str]:
    """Return a name for each: its class, and which one of that class it is."""
    seen: Counter[str] = Counter()
    names = []
    for callback in callbacks:
        kind = type(callback).__qualname__
        names.append(f"{kind}/{seen[kind]}")
        seen[kind] += 1
    return names


def _attributes(callback: keras.callbacks.Callback) -> dict[str, Any]:
    derived = frozenset[str]().union(*(names for kind, names in _DERIVED.items() if isinstance(callback, kind)))
    every = {key: _copied(value) for key, value in vars(callback).items() if key not in _OF_KERAS | derived}
    return {key: value for key, value in every.items() if value is not _NOT_SIMPLE}


def _copied(value: Any) -> Any:
    """Return a copy of a simple value, `_NOT_SIMPLE` for another."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return value.copy() if _is_number(np.asarray(value).dtype) else _NOT_SIMPLE
    if isinstance(value, dict):
        copied = {key: _copied(one) for key, one in value.items()}
        simple = all(isinstance(key, str) for key in value) and not any(one is _NOT_SIMPLE for one in copied.values())
        return copied if simple else _NOT_SIMPLE
    if type(value) in (list, tuple):
        parts = [_copied(one) for one in value]
        return _NOT_SIMPLE if any(one is _NOT_SIMPLE for one in parts) else type(value)(parts)
    return _NOT_SIMPLE


def _is_number(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in _KINDS or dtype.name in _EXTENSION_TYPES


def _plain(value: Any) -> Any:
    """Return an attribute's initial value; arrays as None, since they would double the size."""
    return None if isinstance(value, np.ndarray) else value


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray | np.generic):
        return bool(np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind in "fc"))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) or (isinstance(one, float) and one != one and other != other)  # noqa: PLR0124 - NaN is not equal to itself


def _set_attribute(callback: keras.callbacks.Callback, key: str, value: Any) -> None:
    """Set an attribute. If it is a subclass of dict, such as a defaultdict, its items are replaced."""
    existing = getattr(callback, key, None)
    if isinstance(value, dict) and isinstance(existing, dict) and type(existing) is not dict:
        existing.clear()
        existing.update(value)
    else:
        setattr(callback, key, value)


def _to_json(value: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        # NumPy's files support only its own types: others, such as bfloat16, are stored as bytes.
        own = array.dtype.kind in _KINDS
        arrays.append(array if own else np.frombuffer(array.tobytes(), np.uint8))
        form = {} if own else {"type": array.dtype.name, "shape": list(array.shape)}
        return {"array": len(arrays) - 1, "scalar": isinstance(value, np.generic), **form}
    if isinstance(value, dict):
        return {"dict": {key: _to_json(one, arrays) for key, one in value.items()}}
    if isinstance(value, tuple):
        return {"tuple": [_to_json(one, arrays) for one in value]}
    return [_to_json(one, arrays) for one in value] if isinstance(value, list) else value


def _from_json(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, list):
        return [_from_json(one, arrays) for one in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        array = arrays[str(value["array"])]
        if "type" in value:
            array = np.frombuffer(array.tobytes(), np.dtype(value["type"])).reshape(value["shape"]).copy()
        return array[()] if value["scalar"] else array
    if "tuple" in value:
        return tuple(_from_json(one, arrays) for one in value["tuple"])
    return {key: _from_json(one, arrays) for key, one in value["dict"].items()}
