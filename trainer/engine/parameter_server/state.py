"""The training state on the parameter servers: packed variables, the optimizer's slots, the global step."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.engine import fused_updates, schedules, weight_decay
from trainer.engine.optimizer_copy import copied
from trainer.engine.parameter_server import packing
from trainer.engine.parameter_server.packing import Pack


class PackGroup:
    """Packs that are updated together, by one optimizer, and count their updates on one server, number `server`."""

    def __init__(self, model: keras.Model, optimizer: keras.optimizers.Optimizer, packs: Sequence[Pack], server: int) -> None:
        self._model, self._original = model, optimizer
        self.packs, self.server = packs, server
        self.variables: list[keras.Variable] = []
        for pack in packs:
            members = [model.trainable_variables[i] for i in pack.members]
            with tf.device(device(pack.server)):
                value = pack.join([v.value for v in members])
                name = "pack" if pack.flattened else members[0].name
                self.variables.append(keras.Variable(value, dtype=pack.dtype, name=name))
                self.variables[-1].constraint = None if pack.flattened else members[0].constraint
        with tf.device(device(server)):
            # Slots are placed beside their variables, whose shapes and types Keras gives them.
            self.optimizer = copied(optimizer)
            if not any(pack.flattened for pack in packs):
                own = [model.trainable_variables[pack.members[0]] for pack in packs]
                weight_decay.exclude_mirrors(optimizer, self.optimizer, own, self.variables)
            self._build_slots()
            self._update_colocated()
            # The fused update counts atomically, so that its count is the global step: each operation with an effect
            # is one more message a step. Keras's own update reads, adds 1 and writes back, so concurrent workers lose counts.
            # An optimizer that has taken steps before the run, e.g. that of a loaded model, is ahead of the global step.
            has_taken_steps = bool(optimizer.iterations.numpy())
            self._ahead = tf.Variable(0, dtype=tf.int64) if has_taken_steps else None
            self._iterations_are_steps = not has_taken_steps and fused_updates.fuses(self.optimizer, self.variables)
            self.step = self.optimizer.iterations.value if self._iterations_are_steps else tf.Variable(0, dtype=tf.int64)

    def _build_slots(self) -> None:
        # Keras creates a slot on the current device, so each server's are created under its device.
        add = self.optimizer.add_variable_from_reference

        def add_colocated(reference_variable: keras.Variable, *args: Any, **kwargs: Any) -> keras.Variable:
            with tf.device(reference_variable.value.device):
                return add(reference_variable, *args, **kwargs)

        self.optimizer.add_variable_from_reference = add_colocated
        self.optimizer.build(self.variables)
        del self.optimizer.add_variable_from_reference

    def _update_colocated(self) -> None:
        """Update each variable on its own server: else its slots would be sent to `server`, and the changes back."""
        update = self.optimizer.update_step

        def update_step(gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
            with tf.device(variable.device):
                update(gradient, variable, learning_rate)

        self.optimizer.update_step = update_step

    def apply(self, gradients: Sequence[tf.Tensor]) -> None:
        """Update the variables, on the servers, with one gradient per pack; counts a step."""
        with tf.device(device(self.server)):
            fused_updates.apply(self.optimizer, gradients, self.variables)
            if not self._iterations_are_steps:
                iterations = self.optimizer.iterations.value
                ahead = 0 if self._ahead is None else self._ahead
                iterations.assign(tf.cast(self.step.assign_add(1) + ahead, iterations.dtype))

    def assign_from_chief(self, step: int) -> None:
        """Copy the chief's variables and optimizer to the servers and set the step."""
        for pack, variable in zip(self.packs, self.variables, strict=True):
            variable.value.assign(pack.join([self._model.trainable_variables[i].value for i in pack.members]))
        self._copy_optimizer(to_servers=True)
        self.step.assign(tf.cast(step, self.step.dtype))
        if self._ahead is not None:  # a checkpoint of an earlier version is not ahead
            self._ahead.assign(max(0, int(self._original.iterations.numpy()) - step))

    def copy_to_chief(self) -> None:
        """Copy the servers' state to the chief's variables and optimizer."""
        for pack, variable in zip(self.packs, self.variables, strict=True):
            for index, part in zip(pack.members, pack.split(tf.convert_to_tensor(variable.value.numpy())), strict=True):
                self._model.trainable_variables[index].value.assign(part)
        self._copy_optimizer(to_servers=False)

    @cached_property
    def _slots(self) -> tuple[packing.Slots, packing.Slots]:
        """The slots of the chief's optimizer and of the servers'. Cached: to find them takes as long as to copy a small model."""
        return packing.find_slots(self._original, len(self._model.trainable_variables)), packing.find_slots(self.optimizer, len(self.packs))

    def _copy_optimizer(self, *, to_servers: bool) -> None:
        chief_variables, server_variables = self._original.variables, self.optimizer.variables
        if not all(pack.flattened for pack in self.packs):  # each variable by itself, in the model's order
            for chief, server in zip(chief_variables, server_variables, strict=True):
                _copy(chief, server) if to_servers else _copy(server, chief)
            return
        chief_slots, server_slots = self._slots
        for i, j in zip(chief_slots.scalars, server_slots.scalars, strict=True):
            _copy(chief_variables[i], server_variables[j]) if to_servers else _copy(server_variables[j], chief_variables[i])
        for own, packed in zip(chief_slots.slots, server_slots.slots, strict=True):
            for pack, index in zip(self.packs, packed, strict=True):
                if to_servers:
                    server_variables[index].value.assign(pack.join([chief_variables[own[i]].value for i in pack.members]))
                else:
                    parts = pack.split(tf.convert_to_tensor(server_variables[index].value.numpy()))
                    for i, part in zip(pack.members, parts, strict=True):
                        chief_variables[own[i]].value.assign(part)


class ServerState:
    """Variables on the parameter servers that mirror a Keras model and optimizer on the chief.

    `per_server`: each server updates its own packs; one server holds all packs if updates are not elementwise, a variable has a constraint,
    or the optimizer a `global_clipnorm`. Without it one optimizer updates all packs.
    With `count_on_all` a server that holds nothing counts updates, too.
    Random layers' seeds stay out: each step of each worker has its own, see Replica.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        servers: int,
        *,
        per_server: bool = False,
        count_on_all: bool = False,
    ) -> None:
        self._model = model
        flattened = packing.elementwise(optimizer) and all(v.constraint is None for v in model.trainable_variables)
        holders = 1 if per_server and (not flattened or optimizer.global_clipnorm is not None) else servers
        packs = packing.lay_out(model.trainable_variables, holders, flattened=flattened)
        by_group = {server: [p for p in packs if p.server == server] for server in range(servers)} if per_server else {0: packs}
        self.groups = [
            PackGroup(model, optimizer, members, server) for server, members in by_group.items() if members or count_on_all or not packs
        ]
        with tf.device(device(0)):
            self.non_trainable = [tf.Variable(v.value) for v in self._non_trainable_sources()]

    @property
    def step(self) -> tf.Variable:
        """Return the count of updates, which is the global step."""
        return self.groups[0].step

    def _non_trainable_sources(self) -> list[keras.Variable]:
        return [v for v in self._model.non_trainable_variables if v.value.dtype.is_floating]

    def unpacked(self, packed: Sequence[Sequence[tf.Tensor]]) -> list[tf.Tensor]:
        """Return the trainable values in the model's order, made of one tensor per pack in each group."""
        pairs = (pair for group, tensors in zip(self.groups, packed, strict=True) for pair in zip(group.packs, tensors, strict=True))
        return packing.unpack(pairs, len(self._model.trainable_variables))

    def packed(self, gradients: Sequence[Any]) -> list[list[tf.Tensor]]:
        """Return, for each group, one tensor per pack, made of one gradient per trainable variable."""
        return [[pack.join([gradients[i] for i in pack.members]) for pack in group.packs] for group in self.groups]

    def read(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Return the trainable values in the model's order and the floating ones that are not trained; on the caller's device."""
        values = self.unpacked([[tf.identity(v.value) for v in group.variables] for group in self.groups])
        return values, [tf.identity(v) for v in self.non_trainable]

    def assign_from_chief(self, step: int) -> None:
        """Copy the chief's model and optimizer to the servers and set the global step."""
        for variable, source in zip(self.non_trainable, self._non_trainable_sources(), strict=True):
            variable.assign(source.value)
        for group in self.groups:
            group.assign_from_chief(step)

    def set_rate(self, rate: float | None) -> None:
        """Set the servers' learning rate; None leaves a schedule as it is."""
        for group in self.groups:
            schedules.set_rate(group.optimizer, rate)

    def copy_to_chief(self) -> None:
        """Copy the servers' state to the chief's model and optimizer."""
        for variable, source in zip(self.non_trainable, self._non_trainable_sources(), strict=True):
            source.value.assign(variable.numpy())
        for group in self.groups:
            group.copy_to_chief()


def _copy(source: keras.Variable, target: keras.Variable) -> None:
    target.value.assign(np.asarray(source.value.numpy()))


def device(server: int) -> str:
    """Return the device of a parameter server."""
    return f"/job:ps/replica:0/task:{server}/device:CPU:0"
