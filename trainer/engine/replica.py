"""The computation of one replica in a step: batches become one mean gradient, and the numbers that are reported."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from trainer.engine import clock, global_seed, model_ops, user_step, weight_decay
from trainer.engine.embeddings.sharded_tables import NO_LOOKUPS, Tables
from trainer.engine.session import Session
from trainer.engine.train_config import TrainConfig
from trainer.events import join_names
from trainer.workloads.errors import WorkloadError
from trainer.workloads.protocol import HasTrainStep, Shard, Workload

# (state from the batch before, inputs, targets) -> (measures, gradients, state for the next batch)
Differentiate = Callable[[Sequence[tf.Tensor], Any, Any], tuple[tf.Tensor, list[Any], list[tf.Tensor]]]

MAX_NAMES = 8  # variables that a message names


def _call_directly(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(*arguments)


class Replica:
    """Computes gradients of a workload's loss; the same for each strategy.

    A step takes `accumulate` batches and has one gradient, their mean. Its measures are a float32 vector of `width` elements: loss, the
    metrics, and the seconds it waited for input. `operations` counts those of the model, None if that is not known. `without_gradient` are the
    paths of the trainable variables to which the loss has no gradient; it is empty until a step is traced.
    """

    def __init__(
        self,
        workload: Workload,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        config: TrainConfig,
        run: user_step.Run = _call_directly,
        tables: Tables | None = None,
    ) -> None:
        """Prepare the step. `run` calls a function as each replica does; `tables` have the rows of the model's large layers."""
        self._tables = tables
        self._workload, self._model, self._optimizer = workload, model, optimizer
        self._batches = config.train.gradients.accumulate
        jit = config.train.jit_compile
        self._gradients = tf.function(self._compute, jit_compile=True, autograph=False) if jit else self._compute
        # XLA compiles one function for all steps of an unrolled loop on parameter servers. Without XLA each step is traced by itself: in copies
        # of one function, stateful random operations would draw the same.
        self._gradients_at = tf.function(self._compute_at, jit_compile=True, autograph=False) if jit else self._compute_at
        self._seed = config.seed
        self._name = f"train.workload {config.train.workload}"
        self._unconnected: frozenset[int] = frozenset()  # positions in model.trainable_variables
        self._own_step: user_step.UserStep | None = None
        if isinstance(workload, HasTrainStep) and user_step.customizations(workload):
            self._own_step = user_step.UserStep(workload, model, optimizer, config)
            self._own_step.trace(workload.train_data(Shard(config.batch_size, config.seed)).element_spec, run)
        self.metrics: tuple[str, ...]
        self.operations: int | None = None
        if self._own_step:
            self.metrics = self._own_step.metrics
        else:
            self.metrics, self.operations = model_ops.traced(workload, model)
        self.width = 2 + len(self.metrics)
        self.examples = config.batch_size * self._batches  # of one step

    @property
    def without_gradient(self) -> tuple[str, ...]:
        """Return the paths of the trainable variables to which the loss has no gradient."""
        if self._own_step:
            return self._own_step.without_gradient
        return tuple(v.path for index, v in enumerate(self._model.trainable_variables) if index in self._unconnected)

    @property
    def has_own_step(self) -> bool:
        """Return whether the step is `own_step`: the workload applies gradients itself."""
        return self._own_step is not None

    def own_step(self, batch: Any, waited: tf.Tensor, mean_gradients: user_step.MeanGradients | None) -> tf.Tensor:
        """Let the workload take its own step on a batch for which it waited so many seconds; return its measures. For the rest see UserStep."""
        assert self._own_step is not None  # noqa: S101 - see has_own_step
        inputs, targets = batch
        with global_seed.drawing_with(self._model):
            return tf.concat([self._own_step(inputs, targets, mean_gradients), [waited]], 0)

    def step(self, iterator: Any) -> tuple[tf.Tensor, list[Any]]:
        """Take a step's batches from `iterator`; return its measures and the gradients of the model's trainable variables, None if there is none."""
        return self._step(lambda: timed_next(iterator))

    def step_on(self, batches: Any, waited: tf.Tensor) -> tuple[tf.Tensor, list[Any]]:
        """Take a step on `batches`; return its measures and the gradients of the model's trainable variables, None if there is none.

        Several batches of one step are stacked, [batches, batch, ...]. The task has `waited` so many seconds for them.
        """
        count = self._batches
        each = iter(range(count))

        def take() -> tuple[Any, tf.Tensor]:
            if count == 1:
                return batches, waited
            index = next(each)
            return tf.nest.map_structure(lambda t: t[index], batches), waited / count

        return self._step(take, unrolled=True)

    def _step(self, take: Callable[[], tuple[Any, tf.Tensor]], *, unrolled: bool = False) -> tuple[tf.Tensor, list[Any]]:
        variables = [v.value for v in self._model.trainable_variables]
        with global_seed.drawing_with(self._model):
            measured, gradients, _ = self._mean(take, self._gradients, [], variables, unrolled=unrolled)
        return measured, self._with_none(gradients)

    def stateless_step(
        self,
        iterator: Any,
        values: list[tf.Tensor],
        non_trainable: list[tf.Tensor],
        worker: tf.Tensor,
        step: tf.Tensor,
        rows_after: Sequence[tf.Tensor] = (),
    ) -> tuple[tf.Tensor, list[Any], list[tf.Tensor]]:
        """Take a step from `iterator` at given values of the variables; return its measures, its gradients, and `non_trainable` after it.

        `values` are those of trainable variables, `non_trainable` those of floating-point non-trainable ones. With tables, RowGradients
        of the rows that it used come after the gradients of `values`; rows are looked up after `rows_after` are computed. Random layers
        draw other values for each `worker` and `step`, scalars of integers. A gradient that does not exist is zeros, since variables in
        one pack are updated together; see _check_zeros.
        """
        seed = tf.stack([tf.constant(self._seed, tf.int64), tf.cast(worker, tf.int64), tf.cast(step, tf.int64) * self._batches])
        differentiate = partial(self._gradients_at, values, rows_after)
        measured, gradients, (*after, _) = self._mean(lambda: timed_next(iterator), differentiate, [*non_trainable, seed], values)
        return measured, gradients, after

    def _compute_at(
        self, values: list[tf.Tensor], rows_after: Sequence[tf.Tensor], state: Sequence[tf.Tensor], inputs: Any, targets: Any
    ) -> tuple[tf.Tensor, list[Any], list[tf.Tensor]]:
        *_, own_seed = _seeds(len(model_ops.seeds(self._model)) + 1, state[-1])  # another than those of the layers
        with global_seed.drawing_on_worker(own_seed):
            return self._differentiate_at(values, rows_after, state, inputs, targets)

    def _differentiate_at(
        self, values: list[tf.Tensor], rows_after: Sequence[tf.Tensor], state: Sequence[tf.Tensor], inputs: Any, targets: Any
    ) -> tuple[tf.Tensor, list[Any], list[tf.Tensor]]:
        non_trainable = _non_trainable_values(self._model, list(state))
        by_variable = [
            *zip(self._model.trainable_variables, values, strict=True),
            *zip(self._model.non_trainable_variables, non_trainable, strict=True),
        ]

        def forward() -> tuple[Any, list[tf.Tensor], tf.Tensor]:
            outputs, after, layer_losses = _stateless_call(self._model, values, non_trainable, list(state), inputs)
            outputs = model_ops.in_float32(outputs)
            return outputs, after, model_ops.total_loss(self._workload, (inputs, targets), outputs, layer_losses, by_variable)

        with tf.control_dependencies(list(rows_after)):
            used = self._tables.look_up(forward) if self._tables else NO_LOOKUPS
        with tf.GradientTape() as tape:
            tape.watch([*values, *used.rows])
            with used.rows_supplied():
                outputs, after, loss = forward()
            scaled = self._optimizer.scale_loss(loss)
        own, of_rows = self._differentiate(tape, scaled, values, used.rows)
        self._check_zeros()
        return model_ops.measures(self._workload, loss, targets, outputs), [*own, *used.gradients(of_rows)], after

    def _compute(self, _: Sequence[tf.Tensor], inputs: Any, targets: Any) -> tuple[tf.Tensor, list[Any], list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            outputs = model_ops.in_float32(self._model(inputs, **model_ops.training_argument(self._model, training=True)))
            loss = model_ops.total_loss(self._workload, (inputs, targets), outputs, self._model.losses)
            # A mixed_float16 optimizer scales the loss up, and gradients down again when it applies them.
            scaled = self._optimizer.scale_loss(loss)
        variables = [v.value for v in self._model.trainable_variables]
        gradients, _ = self._differentiate(tape, scaled, variables)
        return model_ops.measures(self._workload, loss, targets, outputs), gradients, []

    def _differentiate(
        self, tape: tf.GradientTape, loss: tf.Tensor, variables: Sequence[Any], rows: Sequence[tf.Tensor] = ()
    ) -> tuple[list[Any], list[Any]]:
        """Return the gradients of `variables`, those that are trained, and of `rows`, zeros if there is none; raise WorkloadError if none exists."""
        gradients = tape.gradient(loss, [*variables, *rows])
        if all(gradient is None for gradient in gradients):
            raise WorkloadError(f"{self._name}: the loss has no gradient to any trainable weight: {user_step.NOTHING_LEARNED}")
        count = len(variables)
        self._unconnected = frozenset(index for index, gradient in enumerate(gradients[:count]) if gradient is None)
        filled = [tf.zeros_like(at) if gradient is None else gradient for at, gradient in zip([*variables, *rows], gradients, strict=True)]
        return filled[:count], filled[count:]

    def _with_none(self, gradients: list[Any]) -> list[Any]:
        """Return the gradients with None for those that do not exist: as in Keras, the optimizer then leaves these variables as they are."""
        return [None if index in self._unconnected else gradient for index, gradient in enumerate(gradients)]

    def _check_zeros(self) -> None:
        """Raise WorkloadError if the optimizer would change variables by gradients of zeros."""
        without = [self._model.trainable_variables[index] for index in sorted(self._unconnected)]
        is_ftrl = isinstance(self._optimizer, keras.optimizers.Ftrl)
        changed = [v.path for v in without if is_ftrl or weight_decay.applies(self._optimizer, v)]
        if changed:
            raise WorkloadError(
                f"{self._name}: the loss has no gradient to {join_names(changed, MAX_NAMES)}, and on parameter_server the optimizer "
                f"{type(self._optimizer).__name__} would change them nevertheless; set `trainable = False` on their layers"
            )

    def _mean(
        self,
        take: Callable[[], tuple[Any, tf.Tensor]],
        differentiate: Differentiate,
        state: list[tf.Tensor],
        variables: Sequence[Any],
        *,
        unrolled: bool = False,
    ) -> tuple[tf.Tensor, list[Any], list[tf.Tensor]]:
        def batch(before: list[tf.Tensor]) -> tuple[tf.Tensor, list[Any], list[tf.Tensor]]:
            (inputs, targets), waited = take()
            measured, gradients, after = differentiate(before, inputs, targets)
            return tf.concat([measured, [waited]], 0), gradients, after

        if self._batches == 1:
            return batch(state)
        sums = _sums(batch(state) for _ in range(self._batches)) if unrolled else self._loop(batch, state, variables)
        measured, gradients, after = sums
        # Seconds add up; loss, metrics and gradients are means.
        scale = tf.constant([1 / self._batches] * (self.width - 1) + [1.0])
        return measured * scale, [g / tf.cast(self._batches, g.dtype) for g in gradients], after

    def _loop(
        self, batch: Callable[[list[tf.Tensor]], Any], state: list[tf.Tensor], variables: Sequence[Any]
    ) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
        zeros = [tf.zeros(v.shape, v.dtype) for v in variables]

        def body(done: tf.Tensor, measured: tf.Tensor, gradients: list[tf.Tensor], before: list[tf.Tensor]) -> tuple[Any, ...]:
            more, more_gradients, after = batch(before)
            added = [g + tf.convert_to_tensor(m) for g, m in zip(gradients, more_gradients, strict=True)]
            return done + 1, measured + more, added, after

        start = (tf.constant(0), tf.zeros([self.width]), zeros, state)
        _, measured, gradients, after = tf.while_loop(lambda done, *_: done < self._batches, body, start)
        return measured, gradients, after


def _sums(steps: Iterator[tuple[tf.Tensor, list[Any], list[tf.Tensor]]]) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
    (measured, gradients, state), *others = steps
    gradients = [tf.convert_to_tensor(g) for g in gradients]
    for more, more_gradients, after in others:
        measured, state = measured + more, after
        gradients = [g + tf.convert_to_tensor(m) for g, m in zip(gradients, more_gradients, strict=True)]
    return measured, gradients, state


def timed_next(iterator: Any) -> tuple[Any, tf.Tensor]:
    """Return the next batch and the seconds it took, a float32 scalar; see clock."""
    began = clock.now()
    with tf.control_dependencies([began]):
        batch = next(iterator)
    with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
        return batch, clock.since(began)


def _non_trainable_values(model: keras.Model, state: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return values of all non-trainable variables, from a batch's state: floating-point values such as moving averages, then [seed, worker, batch]."""
    *floating, seed = state
    floating_values, seeds = iter(floating), iter(_seeds(len(model_ops.seeds(model)), seed))
    values = []
    for variable in model.non_trainable_variables:
        if variable.value.dtype.is_floating:
            values.append(next(floating_values))
        elif not model_ops.is_seed(variable):
            with tf.init_scope():  # training does not change it
                constant = variable.value.numpy()
            values.append(tf.constant(constant))
        else:
            values.append(tf.cast(next(seeds), variable.value.dtype))
    return values


def _stateless_call(
    model: keras.Model, values: list[tf.Tensor], non_trainable: list[tf.Tensor], state: Sequence[tf.Tensor], inputs: Any
) -> tuple[Any, list[tf.Tensor], list[tf.Tensor]]:
    """Call the model with given values of its variables; return outputs, the state for the next batch, and losses."""
    seed = state[-1]
    mode = model_ops.training_argument(model, training=True)
    outputs, after, losses = model.stateless_call(values, non_trainable, inputs, **mode, return_losses=True)
    for variable, old, new in zip(model.non_trainable_variables, non_trainable, after, strict=True):
        if new is not old and not (variable.value.dtype.is_floating or model_ops.is_seed(variable)):
            raise WorkloadError(
                f"the model {model.name!r} changes {variable.path} ({variable.dtype}) in a training step, and parameter_server would lose that: give "
                'it the dtype "float32", or use strategy single, mirrored or multi_worker_mirrored'
            )
    floating = [new for v, new in zip(model.non_trainable_variables, after, strict=True) if v.value.dtype.is_floating]
    return outputs, [*floating, seed + tf.constant([0, 0, 1], tf.int64)], list(losses)


def _seeds(count: int, seed: tf.Tensor) -> list[tf.Tensor]:
    """Return the states of `count` seed generators of Keras, [2] each, computed from `seed`: the run's seed, the worker, the number of its batch.

    Stateful random operations would draw the same on every worker, and again after a restart.
    """
    if not count:
        return []
    drawn = tf.random.stateless_uniform([count, 2], tf.random.fold_in(seed[:2], seed[2]), maxval=2**31 - 1, dtype=tf.int32)
    return [drawn[index] for index in range(count)]


class ReplicaSession(Session):
    """A session whose gradients a Replica computes."""

    _replica: Replica

    @property
    def without_gradient(self) -> Sequence[str]:
        """See Session.without_gradient."""
        return self._replica.without_gradient
