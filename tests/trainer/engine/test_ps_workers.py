"""What the chief tells of calls that workers have ended, or have not yet."""

from dataclasses import dataclass

import numpy as np

from trainer.engine.ps_workers import Connection, Result, Workers


@dataclass(frozen=True)
class Measures:
    """Of a model with one metric."""

    metrics: tuple[str, ...] = ("accuracy",)
    width: int = 3
    examples: int = 16


def result(worker: int, steps: int, *totals: float) -> Result:
    return Result(worker=worker, seconds=2.0, steps=steps, totals=np.array(totals, np.float32))


def test_loss_and_metrics_are_means_over_steps_and_stay_known_while_no_call_ends() -> None:
    workers = Workers(Connection(None, 1, 2), lambda _: None, lambda *_: result(0, 0), Measures(), lambda: False)
    assert workers.summarise([]) == (None, {}, [])
    assert workers.summarise([result(0, 0, 0, 0, 0)]) == (None, {}, [])  # lost
    loss, metrics, told = workers.summarise([result(0, 10, 10.0, 5.0, 1.0), result(1, 30, 15.0, 25.0, 1.0)])
    assert (loss, metrics) == (25 / 40, {"accuracy": 0.75})
    assert [(one.task, one.loss, one.input_wait) for one in told] == [("worker-0", 1.0, 0.5), ("worker-1", 0.5, 0.5)]
    assert workers.summarise([]) == (loss, metrics, [])
