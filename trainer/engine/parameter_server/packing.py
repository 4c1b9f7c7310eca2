"""Lays a model's variables out over the parameter servers, many in one vector, and translates back.

A vector of many variables is read, sent and updated in one go. Only optimizers that work element by
element may see variables that way; for others every variable stays by itself, with its own shape.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.engine import weight_decay
from trainer.engine.optimizer_copy import copied
from trainer.workloads.averaged_sgd import AveragedSGD

_VECTOR_BYTES = 64 * 2**20  # a larger model gets several vectors, so that no message nears gRPC's 2 GiB
SINGLE_SERVER_BYTES = 64 * 2**10  # a smaller model is one vector on one server: another message would cost more than its content
# Optimizers whose update of an element depends on that element alone.
_ELEMENTWISE = frozenset(
    [
        AveragedSGD,
        *(
            getattr(keras.optimizers, name)
            for name in ("SGD", "RMSprop", "Adam", "AdamW", "Adadelta", "Adagrad", "Adamax", "Nadam", "Ftrl", "Lion")
        ),
    ]
)


@dataclass(frozen=True)
class Pack:
    """Some of the model's trainable variables, kept together on parameter server `server`."""

    server: int
    members: tuple[int, ...]  # positions in model.trainable_variables
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    flattened: bool

    @property
    def sizes(self) -> list[int]:
        """Return the number of elements of each member."""
        return [int(np.prod(shape)) for shape in self.shapes]

    def join(self, values: Sequence[Any]) -> tf.Tensor:
        """Return the pack's tensor made of one tensor per member."""
        return tf.concat([tf.reshape(v, [-1]) for v in values], 0) if self.flattened else tf.convert_to_tensor(values[0])

    def split(self, value: tf.Tensor) -> list[tf.Tensor]:
        """Return one tensor per member made of the pack's tensor."""
        if not self.flattened:
            return [value]
        return [tf.reshape(part, shape) for part, shape in zip(tf.split(value, self.sizes), self.shapes, strict=True)]


def unpack(packs: Iterable[tuple[Pack, tf.Tensor]], count: int) -> list[tf.Tensor]:
    """Return the model's `count` trainable values in its order, made of each pack's tensor."""
    values: list[Any] = [None] * count
    for pack, tensor in packs:
        for index, part in zip(pack.members, pack.split(tensor), strict=True):
            values[index] = part
    return values


def lay_out(variables: Sequence[keras.Variable], servers: int, *, flattened: bool) -> list[Pack]:
    """Distribute variables over the servers, the largest first, each to the one with the fewest bytes; a small model stays on one if `flattened`."""
    sizes = [int(np.prod(v.shape)) * tf.as_dtype(v.dtype).size for v in variables]
    load = [0] * (1 if flattened and sum(sizes) <= SINGLE_SERVER_BYTES else servers)
    owned: dict[tuple[int, str], list[int]] = {}
    for index in sorted(range(len(variables)), key=lambda i: (-sizes[i], i)):
        server = load.index(min(load))
        load[server] += sizes[index]
        owned.setdefault((server, variables[index].dtype), []).append(index)
    packs = []
    for (server, dtype), members in sorted(owned.items()):
        for group in _groups(sorted(members), sizes) if flattened else [[m] for m in members]:
            shapes = tuple(tuple(variables[i].shape) for i in group)
            packs.append(Pack(server, tuple(group), shapes, dtype, flattened))
    return packs if flattened else sorted(packs, key=lambda pack: pack.members)


def _groups(members: list[int], sizes: list[int]) -> list[list[int]]:
    groups: list[list[int]] = [[]]
    filled = 0
    for member in members:
        if groups[-1] and filled + sizes[member] > _VECTOR_BYTES:
            groups.append([])
            filled = 0
        groups[-1].append(member)
        filled += sizes[member]
    return groups


def elementwise(optimizer: keras.optimizers.Optimizer) -> bool:
    """Return whether the optimizer treats every element alike, so that variables may be joined in vectors."""
    return (
        type(optimizer) in _ELEMENTWISE
        and optimizer.clipnorm is None
        and optimizer.gradient_accumulation_steps is None
        and not (optimizer.use_ema and optimizer.ema_overwrite_frequency)
        # Excluded variables are known one by one, which those in a vector are not.
        and not weight_decay.excludes(optimizer)
    )


@dataclass(frozen=True)
class Slots:
    """The indices of an optimizer's state in `optimizer.variables`.

    `scalars` belong to no variable (iterations, learning rate); `slots[k][j]` is slot k of variable j.
    """

    scalars: tuple[int, ...]
    slots: tuple[tuple[int, ...], ...]


def find_slots(optimizer: keras.optimizers.Optimizer, count: int) -> Slots:
    """Find the slots of an optimizer built on `count` variables.

    Keras orders slots by kind or by variable, moving averages before all others; a probe, built on two variables of different length,
    shows which.
    """
    probe = copied(optimizer)
    probe.build([keras.Variable(np.zeros(length, np.float32)) for length in (2, 3)])
    owners = [{(2,): 0, (3,): 1}.get(tuple(v.shape)) for v in probe.variables]
    scalars: list[int] = []
    slots: list[tuple[int, ...]] = []
    probe_index = index = 0  # in the probe's list, and in the optimizer's
    while probe_index < len(owners):
        if owners[probe_index] is None:
            scalars.append(index)
            probe_index, index = probe_index + 1, index + 1
            continue
        # A block of slots: all of the first variable, then as many of the second.
        kinds = owners.index(1, probe_index) - probe_index
        slots += [tuple(index + j * kinds + kind for j in range(count)) for kind in range(kinds)]
        probe_index, index = probe_index + 2 * kinds, index + count * kinds
    return Slots(tuple(scalars), tuple(slots))
