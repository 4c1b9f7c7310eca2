"""The state of callbacks is serialized as bytes and restored."""

import math
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import keras
import ml_dtypes
import numpy as np
import pytest

from trainer.engine.callback_state import TrackedAttributes, extra_values


class StatefulCallback(keras.callbacks.Callback):
    """A callback with the given attributes."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        set_attributes(self, attributes)


def set_attributes(callback: keras.callbacks.Callback, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        setattr(callback, name, value)


def restored(before: StatefulCallback, changes: dict[str, Any], after: StatefulCallback) -> StatefulCallback:
    """Change attributes of the callback `before`, restore its state in `after`, and return `after`."""
    tracked = TrackedAttributes([before])
    set_attributes(before, changes)
    TrackedAttributes([after]).restore(tracked.serialize())
    return after


@pytest.mark.parametrize(
    "value",
    [
        3,
        True,
        0.1,
        math.inf,
        math.nan,
        "text",
        None,
        [1, [2.5, "x"]],
        (1, (2, None)),
        {"a": {"b": [1]}},
        np.float32(0.25),
        np.arange(6.0).reshape(2, 3),
        [np.zeros([2, 2], np.float32), np.ones([3], np.int8)],
        [np.arange(6.0).reshape(2, 3).astype(ml_dtypes.bfloat16)],
    ],
    ids=str,
)
def test_a_simple_value_is_restored(value: Any) -> None:
    after = restored(StatefulCallback(value=-1), {"value": value}, StatefulCallback(value=-1))
    assert type(after.value) is type(value)
    np.testing.assert_equal(after.value, value)


@pytest.mark.parametrize("dict_class", [lambda: defaultdict(list), OrderedDict, Counter], ids=["defaultdict", "OrderedDict", "Counter"])
def test_a_subclass_of_dict_is_restored_as_such(dict_class: Callable[[], dict[str, Any]]) -> None:
    before, after = StatefulCallback(value=dict_class()), StatefulCallback(value=dict_class())
    after = restored(
        before, {"value": type(before.value)(None, a=[1]) if isinstance(before.value, defaultdict) else type(before.value)(a=2)}, after
    )
    assert type(after.value) is type(before.value)
    assert after.value == before.value
    assert not isinstance(after.value, defaultdict) or after.value["new"] == []


def test_attributes_that_are_not_simple_are_not_restored() -> None:
    after = restored(
        StatefulCallback(value=1), {"value": object(), "model_": keras.Sequential(), "parts": [1, object()]}, StatefulCallback(value=1)
    )
    assert vars(after).keys() == vars(StatefulCallback(value=1)).keys()
    assert after.value == 1


def test_a_changed_argument_is_used_and_the_state_is_restored() -> None:
    after = restored(StatefulCallback(patience=3, wait=0), {"wait": 2}, StatefulCallback(patience=5, wait=0))
    assert (after.patience, after.wait) == (5, 2)
    after = restored(StatefulCallback(rate=0.1), {"rate": 0.05}, StatefulCallback(rate=0.2))
    assert after.rate == 0.2


def test_a_change_before_training_that_training_undoes_stays_undone() -> None:
    before, after = StatefulCallback(best=None), StatefulCallback(best=None)
    tracked = TrackedAttributes([before])
    before.best = 7
    tracked.mark_begin()
    before.best = None
    tracked_after = TrackedAttributes([after])
    after.best = 7
    tracked_after.restore(tracked.serialize())
    assert after.best is None


def test_each_callback_gets_its_own_state_by_class_and_position() -> None:
    tracked = TrackedAttributes(first := [StatefulCallback(value=0), keras.callbacks.History(), StatefulCallback(value=0)])
    first[0].value, first[2].value = 1, 2
    serialized = tracked.serialize(epoch=4, means={"loss": 0.5})
    assert extra_values(serialized) == {"epoch": 4, "means": {"loss": 0.5}}
    TrackedAttributes(second := [StatefulCallback(value=0), StatefulCallback(value=0), StatefulCallback(value=0)]).restore(serialized)
    assert [callback.value for callback in second] == [1, 2, 0]
