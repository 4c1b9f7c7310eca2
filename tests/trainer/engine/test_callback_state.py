"""The state of callbacks, as bytes and restored."""

import math
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import keras
import ml_dtypes
import numpy as np
import pytest

from trainer.engine.callback_state import TrackedAttributes, extra_values


class Having(keras.callbacks.Callback):
    """Has attributes."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        put(self, attributes)


def put(callback: keras.callbacks.Callback, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        setattr(callback, name, value)


def carried(before: Having, changes: dict[str, Any], after: Having) -> Having:
    """Change attributes of one callback, and let another one get back what the first remembers."""
    remembered = TrackedAttributes([before])
    put(before, changes)
    TrackedAttributes([after]).restore(remembered.pack())
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
def test_a_simple_value_comes_back_as_it_was(value: Any) -> None:
    found = carried(Having(it=-1), {"it": value}, Having(it=-1))
    assert type(found.it) is type(value)
    np.testing.assert_equal(found.it, value)


@pytest.mark.parametrize("kind", [lambda: defaultdict(list), OrderedDict, Counter], ids=["defaultdict", "OrderedDict", "Counter"])
def test_a_dict_of_a_class_of_its_own_stays_one(kind: Callable[[], dict[str, Any]]) -> None:
    before, after = Having(it=kind()), Having(it=kind())
    found = carried(before, {"it": type(before.it)(None, a=[1]) if isinstance(before.it, defaultdict) else type(before.it)(a=2)}, after)
    assert type(found.it) is type(before.it)
    assert found.it == before.it
    assert not isinstance(found.it, defaultdict) or found.it["new"] == []


def test_what_is_not_simple_stays_as_it_is() -> None:
    found = carried(Having(it=1), {"it": object(), "model_": keras.Sequential(), "parts": [1, object()]}, Having(it=1))
    assert vars(found).keys() == vars(Having(it=1)).keys()
    assert found.it == 1


def test_an_argument_that_is_another_now_counts_and_state_comes_back() -> None:
    found = carried(Having(patience=3, wait=0), {"wait": 2}, Having(patience=5, wait=0))
    assert (found.patience, found.wait) == (5, 2)
    found = carried(Having(rate=0.1), {"rate": 0.05}, Having(rate=0.2))
    assert found.rate == 0.2


def test_what_training_begins_with_is_undone() -> None:
    before, after = Having(best=None), Having(best=None)
    remembered = TrackedAttributes([before])
    before.best = 7
    remembered.mark_begin()
    before.best = None
    again = TrackedAttributes([after])
    after.best = 7
    again.restore(remembered.pack())
    assert after.best is None


def test_each_gets_its_own_by_class_and_place() -> None:
    remembered = TrackedAttributes(first := [Having(it=0), keras.callbacks.History(), Having(it=0)])
    first[0].it, first[2].it = 1, 2
    packed = remembered.pack(epoch=4, means={"loss": 0.5})
    assert extra_values(packed) == {"epoch": 4, "means": {"loss": 0.5}}
    TrackedAttributes(second := [Having(it=0), Having(it=0), Having(it=0)]).restore(packed)
    assert [one.it for one in second] == [1, 2, 0]
