"""Trains on parameter servers with callbacks that change the rate, and weights; for drive_parameter_server.py, which has the connection."""

from pathlib import Path
from typing import Any

# Settings of `train`.
KINDS: dict[str, dict[str, Any]] = {"asynchronous": {}, "synchronous": {"sync": {"replicas_to_aggregate": 1}}}


def report(connection: Any, scratch: Path, alive: list[Any]) -> dict[str, Any]:
    """Return the results of each kind; add the sessions to `alive`."""
    import keras

    from tests.trainer.engine.calling import Changing, SmallWithCallbacks, callback_config, weight_sum
    from tests.trainer.engine.test_loop import Output
    from trainer.engine import loop
    from trainer.engine.parameter_server.asynchronous import AsynchronousSession
    from trainer.engine.parameter_server.synchronous import SynchronousSession
    from trainer.events import Reporter
    from trainer.workloads.errors import WorkloadError

    results: dict[str, Any] = {}
    for kind, settings in KINDS.items():
        changing = Changing(weights=False)
        batches: list[int] = []
        batch_counter = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, _, into=batches: into.append(batch))
        # No later epoch is better by `min_delta`, so the first one counts as the best.
        best = keras.callbacks.EarlyStopping(monitor="loss", min_delta=10.0, patience=20, restore_best_weights=True)
        callbacks: list[keras.callbacks.Callback] = [changing, best, batch_counter]
        workload = SmallWithCallbacks(callbacks.copy, optimizer="SGD")
        config = callback_config(workload, scratch / kind, 1, epochs=10, batch_size=80, **settings)
        session = (SynchronousSession if settings else AsynchronousSession)(workload, config, connection, lambda: False)
        alive.append(session)
        outcome = loop.run(session, workload, config, Reporter("chief", Output()), lambda: False)
        results[kind] = {
            "step": outcome.step,
            "seen": changing.weight_sums,
            "sum": weight_sum(session.model),
            "rate": float(session.optimizer.learning_rate.numpy()),
            "batches": batches,
        }
        # The same session in a run of its own: to build another one takes seconds.
        callbacks[:] = [Changing()]
        config = callback_config(workload, scratch / f"{kind}-refused", 1, epochs=10, batch_size=80, **settings)
        try:
            loop.run(session, workload, config, Reporter("chief", Output()), lambda: False)
        except WorkloadError as error:
            results[kind]["refused"] = str(error)
        session.close()
    return results
