"""The reaction to divergence, i.e. a loss or weights that are not finite: `train.on_nan`.

A mixed_float16 optimizer skips such a step and halves its loss scale, as Keras does. That is no divergence while a step has one batch and the
scale is above 1.
"""

import keras
import tensorflow as tf

from trainer.engine import data_length
from trainer.engine.session import DivergedError, NonFinite, Session
from trainer.engine.train_config import TrainConfig
from trainer.events import Reporter

_REMEDY = "lower the learning rate, clip gradients (train.gradients) or check the data; `train.on_nan: warn` trains on"


class Divergence:
    """Checks what a session has done, on every task alike, and the weights before they are saved."""

    def __init__(self, session: Session, config: TrainConfig, report: Reporter) -> None:
        self._session, self._config, self._report = session, config, report
        self._fails = config.train.on_nan == "stop"
        self._one_batch = config.train.gradients.accumulate == 1
        self._reported = False
        # Some are infinite from the start, e.g. a mask, or the best value so far.
        variables = session.model.variables if session.is_chief else []
        self._weights = [v for v in variables if v.value.dtype.is_floating and _finite(v)]

    def check(self, non_finite: NonFinite | None) -> None:
        """Report where a loss was not finite, if one was.

        Raises:
            DivergedError: there was one, and `train.on_nan` is `stop`.
        """
        if non_finite is not None and not self._is_skipped():
            self._report_divergence(f"the loss of {non_finite.task or self._report.task} is nan or infinite at step {non_finite.step}")

    def flush(self) -> None:
        """Have the session finish the steps in progress, and check their losses. Raises DivergedError."""
        with data_length.translate_end_of_data(self._config):  # others may still compute
            self.check(self._session.flush())

    def may_save(self, step: int) -> bool:
        """Return whether all weights of the chief's model, current after `fetch`, are finite. Those that never were do not count.

        Raises:
            DivergedError: they are not, and `train.on_nan` is `stop`.
        """
        optimizer = self._session.optimizer
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) and (scale := float(optimizer.dynamic_scale.numpy())) < 1:
            self._report_divergence(
                f"the loss scale has fallen to {scale:.2g} at step {step}: gradients have not been finite for long, and nothing is learned"
            )
        non_finite = next((v.path for v in self._weights if not _finite(v)), None)
        if non_finite:
            self.flush()  # the loss that caused this may be of a call that a worker has not reported yet
            self._report_divergence(f"the weights are not finite at step {step}, {non_finite} for one, and are not saved")
        return non_finite is None

    def _is_skipped(self) -> bool:
        """Return whether loss scaling skips the step, see above."""
        optimizer = self._session.optimizer
        if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer) or not self._one_batch:
            return False
        if self._session.is_chief:
            self._session.fetch()
        return float(optimizer.dynamic_scale.numpy()) > 1

    def _report_divergence(self, message: str) -> None:
        if self._fails:
            raise DivergedError(f"{message}; {_REMEDY}")
        if not self._reported:
            self._report(
                "notice", message=f"{message}; train.on_nan is warn: training goes on, and weights that are not finite are never saved"
            )
            self._reported = True


def _finite(variable: keras.Variable) -> bool:
    return bool(tf.reduce_all(tf.math.is_finite(variable.value)).numpy())
