"""The state of callbacks as bytes for a checkpoint: their simple attributes, without pickle.

Simple are numbers, texts, None, NumPy arrays, and lists, tuples and dicts of such. The bytes are an .npz file: arrays by number, and
`text`, JSON in which {"array": n} stands for one. An attribute is saved if it has changed since the callback was made, or
since training began. It is restored only if the constructor has given it the same value as then: an argument that was changed between two
starts of a run wins.
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
# Attributes that a callback finds out for itself after each start, by its class.
_DERIVED: dict[type, frozenset[str]] = {
    keras.callbacks.CSVLogger: frozenset({"append", "append_header"}),
    keras.callbacks.EarlyStopping: frozenset({"min_delta"}),  # its sign, with the function that compares
    keras.callbacks.ReduceLROnPlateau: frozenset({"min_delta"}),
}
_TEXT = "text"
_KINDS = "biufc"  # of NumPy's types of numbers
_SHORT = ("bfloat16", "float8_e4m3fn", "float8_e5m2")  # types of weights that NumPy has from elsewhere
_NOTHING = object()


class TrackedAttributes:
    """The attributes of some callbacks, seen first when they are made: right after `__init__`."""

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        self._callbacks = list(callbacks)
        self._names = _names(self._callbacks)
        self._made = self._now()
        self._at_begin = self._made

    def mark_begin(self) -> None:
        """Read them again, after `on_train_begin`."""
        self._at_begin = self._now()

    def arguments(self) -> str:
        """Return a digest of the simple values that the callbacks were made with."""
        made = {
            name: {key: _to_json(_plain(value), []) for key, value in one.items()}
            for name, one in zip(self._names, self._made, strict=True)
        }
        return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()

    def pack(self, **more: Any) -> bytes:
        """Return the state to save, and `more` of simple values."""
        arrays: list[np.ndarray] = []
        saved = {}
        for name, now, made, at_begin in zip(self._names, self._now(), self._made, self._at_begin, strict=True):
            changed = [key for key, value in now.items() if not (_same(value, made.get(key)) and _same(value, at_begin.get(key)))]
            saved[name] = {key: [_to_json(now[key], arrays), _to_json(_plain(made.get(key)), arrays)] for key in changed}
        text = json.dumps({"callbacks": saved, **more})
        file = io.BytesIO()
        named: dict[str, Any] = {_TEXT: np.frombuffer(text.encode(), np.uint8), **{str(n): array for n, array in enumerate(arrays)}}
        np.savez(file, **named)
        return file.getvalue()

    def restore(self, packed: bytes) -> None:
        """Restore what `pack` saved of callbacks of the same class and position."""
        found, arrays = _unpacked(packed)
        for name, callback, made in zip(self._names, self._callbacks, self._made, strict=True):
            for key, (now, before) in found["callbacks"].get(name, {}).items():
                if _same(_from_json(before, arrays), _plain(made.get(key))):
                    _set_attribute(callback, key, _from_json(now, arrays))

    def _now(self) -> list[dict[str, Any]]:
        return [_attributes(callback) for callback in self._callbacks]


def more_of(packed: bytes) -> dict[str, Any]:
    """Return the values that `pack` was given beside the callbacks."""
    found, _ = _unpacked(packed)
    return {key: value for key, value in found.items() if key != "callbacks"}


def _unpacked(packed: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    with np.load(io.BytesIO(packed), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    found = json.loads(arrays.pop(_TEXT).tobytes().decode())
    return found, arrays


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
    return {key: value for key, value in every.items() if value is not _NOTHING}


def _copied(value: Any) -> Any:
    """Return a copy of a simple value, `_NOTHING` for one that is not."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return value.copy() if _is_number(np.asarray(value).dtype) else _NOTHING
    if isinstance(value, dict):
        copied = {key: _copied(one) for key, one in value.items()}
        simple = all(isinstance(key, str) for key in value) and not any(one is _NOTHING for one in copied.values())
        return copied if simple else _NOTHING
    if type(value) in (list, tuple):
        parts = [_copied(one) for one in value]
        return _NOTHING if any(one is _NOTHING for one in parts) else type(value)(parts)
    return _NOTHING


def _is_number(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in _KINDS or dtype.name in _SHORT


def _plain(value: Any) -> Any:
    """Return a value that an attribute was made with; arrays as None, for they would double the size."""
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
    """Set an attribute; a dict of a class of its own, such as a defaultdict, which is known by the one that was made, is filled."""
    made = getattr(callback, key, None)
    if isinstance(value, dict) and isinstance(made, dict) and type(made) is not dict:
        made.clear()
        made.update(value)
    else:
        setattr(callback, key, value)


def _to_json(value: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        # NumPy's files know no types but its own: others, such as bfloat16, are stored as bytes.
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
