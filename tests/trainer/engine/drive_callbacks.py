"""Trains with a callback that changes weights and rate, as one of two tasks in step or on two devices; prints JSON of what each has in the end.

Usage: drive_callbacks.py INDEX ADDRESS ADDRESS, or drive_callbacks.py mirrored.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))


def main(which: str, addresses: list[str]) -> None:
    if addresses:
        cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": int(which)}}
        os.environ["TF_CONFIG"] = json.dumps(cluster)
    from trainer import quiet

    with quiet.importing():  # as the trainer does: the garbage collector looks no further at what an import has made
        import keras
        import tensorflow  # noqa: F401, ICN001

    from tests.trainer.engine.calling import Calling, Changing, calling_job, sum_of
    from tests.trainer.engine.test_loop import Output
    from trainer.engine import loop
    from trainer.events import Reporter

    sessions = with_ring(int(which), addresses) if addresses else on_devices()
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        for name, by_batch in (("epochs", False), ("batches", True), ("chief alone", True)):
            changing = Changing()
            made: list[keras.callbacks.Callback] = [changing] if name != "chief alone" or which != "1" else []
            made += [keras.callbacks.LambdaCallback(on_train_batch_end=lambda *_: None)] if by_batch and made else []
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
    print(json.dumps(report), flush=True)
    os._exit(0)


def with_ring(index: int, addresses: list[str]) -> Any:
    from trainer.engine.local import LocalSession
    from trainer.engine.ring import Ring

    ring = Ring(len(addresses), index)
    ring.meet([f"worker-{i}" for i in range(len(addresses))], addresses)
    return lambda workload, job: LocalSession(workload, job, ring)


def on_devices() -> Any:
    from trainer.engine.mirrored import MirroredSession, devices

    names = devices(2)
    return lambda workload, job: MirroredSession(workload, job, names)


def parts(variable: Any) -> list[Any]:
    """Return a variable's value on each device."""
    return list(getattr(variable, "values", [variable]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
