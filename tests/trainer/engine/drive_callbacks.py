"""Trains with a callback that changes weights and rate, as one of two tasks in step; prints JSON of what each has in the end.

Usage: drive_callbacks.py INDEX ADDRESS ADDRESS.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))


def main(index: int, addresses: list[str]) -> None:
    cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    os.environ["TF_CONFIG"] = json.dumps(cluster)
    from trainer import quiet

    with quiet.importing():  # as the trainer does: the garbage collector looks no further at what an import has made
        import keras  # noqa: F401
        import tensorflow  # noqa: F401, ICN001

    from trainer.engine.local import LocalSession
    from trainer.engine.ring import Ring

    ring = Ring(len(addresses), index)
    ring.meet([f"worker-{i}" for i in range(len(addresses))], addresses)
    cases = {"epochs": False, "batches": True, "chief alone": True if index == 0 else None}
    print(json.dumps(trained(lambda workload, job: LocalSession(workload, job, ring), cases)), flush=True)
    os._exit(0)


def trained(sessions: Any, cases: dict[str, bool | None]) -> dict[str, Any]:
    """Return what comes of each case: whether there is a callback that wants every batch beside the one that changes, None without any."""
    import keras

    from tests.trainer.engine.calling import Calling, Changing, calling_job, sum_of
    from tests.trainer.engine.test_loop import Output
    from trainer.engine import loop
    from trainer.events import Reporter

    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        for name, by_batch in cases.items():
            changing = Changing()
            made: list[keras.callbacks.Callback] = [] if by_batch is None else [changing]
            made += [keras.callbacks.LambdaCallback(on_train_batch_end=lambda *_: None)] if by_batch else []
            workload = Calling(made.copy, optimizer="SGD", dropout=True)
            job = calling_job(workload, Path(directory, name), 2, epochs=10)
            session = sessions(workload, job)
            outcome = loop.run(session, workload, job, Reporter("task", Output()), lambda: False)
            values = [v.value for v in session.model.trainable_variables]
            report[name] = {
                "step": session.step,
                "finished": outcome.finished,
                "rate": float(session.optimizer.learning_rate.numpy()),
                "sum": sum_of(session.model),
                "replicas": [sum(float(r.numpy().sum()) for r in replicas) for replicas in zip(*map(parts, values), strict=True)],
                "seen": changing.seen,
                "elements": sum(w.size for w in session.model.get_weights()),
            }
    return report


def parts(variable: Any) -> list[Any]:
    """Return a variable's value on each device."""
    return list(getattr(variable, "values", [variable]))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
