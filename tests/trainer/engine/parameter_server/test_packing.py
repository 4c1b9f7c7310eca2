"""The layout of variables over servers, and the slots of optimizers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from trainer.engine.parameter_server import packing


def variables(*shapes: tuple[int, ...]) -> list[keras.Variable]:
    return [keras.Variable(np.full(shape, float(i), np.float32)) for i, shape in enumerate(shapes)]


@given(st.lists(st.integers(1, 50_000), min_size=1, max_size=12), st.integers(1, 5))
def test_every_variable_is_on_one_server_and_is_restored_whole(lengths: list[int], servers: int) -> None:
    originals: list[Any] = [np.full(length, i, np.float32) for i, length in enumerate(lengths)]  # in place of variables, which take longer
    packs = packing.lay_out(originals, servers, flattened=True)
    assert sorted(member for pack in packs for member in pack.members) == list(range(len(lengths)))
    assert {pack.server for pack in packs} <= set(range(servers))
    for pack in packs:
        members = [originals[i] for i in pack.members]
        for before, after in zip(members, pack.split(pack.join(members)), strict=True):
            np.testing.assert_array_equal(before, after.numpy())


def test_servers_hold_about_the_same() -> None:
    packs = packing.lay_out(variables(*[(1000 * size,) for size in (100, 90, 60, 50, 40, 10)]), 2, flattened=True)
    loads = [sum(sum(pack.sizes) for pack in packs if pack.server == server) for server in (0, 1)]
    assert max(loads) <= sum(loads) / 2 * 4 / 3  # Graham's bound for the largest first


def test_few_bytes_stay_on_one_server() -> None:
    assert [pack.server for pack in packing.lay_out(variables((100,), (4000,)), 2, flattened=True)] == [0]


def test_a_large_model_is_cut_into_several_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_VECTOR_BYTES", 1000)
    packs = packing.lay_out(variables((200,), (200,), (300,), (10,)), 1, flattened=True)
    assert len(packs) == 4
    assert all(sum(pack.sizes) * 4 <= 1200 for pack in packs)


def test_variables_that_are_not_flattened_keep_their_shape_and_order() -> None:
    packs = packing.lay_out(variables((3, 2), (50, 50), (4,)), 2, flattened=False)
    assert [pack.members for pack in packs] == [(0,), (1,), (2,)]
    assert packs[1].join([tf.ones((50, 50))]).shape == (50, 50)


@pytest.mark.parametrize("kind", sorted(packing._ELEMENTWISE, key=str))
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("averaged", [False, True])
def test_slots_are_found_for_every_optimizer_that_is_packed(kind: Any, count: int, averaged: bool) -> None:
    optimizer = kind(use_ema=averaged)
    optimizer.build(variables(*[(5 + j,) for j in range(count)]))
    layout = packing.find_slots(optimizer, count)
    for slot in layout.slots:
        assert [tuple(optimizer.variables[i].shape) for i in slot] == [(5 + j,) for j in range(count)]
    assert all(optimizer.variables[i].shape == () for i in layout.scalars)
    indices = [*layout.scalars, *(i for slot in layout.slots for i in slot)]
    assert sorted(indices) == list(range(len(optimizer.variables)))


def undecayed(**excluded: Any) -> keras.optimizers.Optimizer:
    """Return an optimizer that excludes variables from weight decay, by `var_names` or, of that shape, by `var_list`."""
    optimizer = keras.optimizers.AdamW(weight_decay=0.01)
    optimizer.exclude_from_weight_decay(**{name: variables(*value) if name == "var_list" else value for name, value in excluded.items()})
    return optimizer


@pytest.mark.parametrize(
    "optimizer",
    [
        partial(keras.optimizers.Adam, clipnorm=1.0),
        partial(keras.optimizers.Adam, gradient_accumulation_steps=2),
        partial(keras.optimizers.SGD, use_ema=True, ema_overwrite_frequency=10),
        keras.optimizers.Lamb,
        keras.optimizers.Muon,
        partial(undecayed, var_names=["bias"]),
        partial(undecayed, var_list=[(2,)]),
    ],
)
def test_an_optimizer_that_needs_whole_variables_is_not_packed(optimizer: Callable[[], keras.optimizers.Optimizer]) -> None:
    assert not packing.elementwise(optimizer())
