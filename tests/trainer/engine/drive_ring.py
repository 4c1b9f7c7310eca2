"""One of two tasks that compute means: first by TensorFlow's all-reduce, because they cannot connect, then by their own; prints JSON.

python drive_ring.py INDEX ADDRESS ADDRESS
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

NAMES = ("worker-0", "worker-1")
ROWS = ([1, 7], [7, 2, 3])  # the rows, of 9, for which each task has a gradient
# Lengths and types of variables.
SHARED = ((100, "float32"), (400, "float32"), (3, "float32"), (5, "int64"), (7, "bfloat16"), (0, "float32"))
NOWHERE = "192.0.2.1:2222"  # an address for documentation, RFC 5737


def main(index: int, addresses: list[str]) -> None:
    """Be task `index`."""
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})
    import tensorflow as tf

    from tests.trainer.engine.drivers import report_and_wait
    from trainer.engine.collectives import all_reduce, rendezvous
    from trainer.workloads.errors import WorkloadError

    # One strategy in a process, as in a task: while a second one is created, TensorFlow may consider this task dead.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    tf.distribute.MultiWorkerMirroredStrategy = lambda: strategy

    def new_reducer(wire: str = "float32") -> all_reduce.AllReduce:
        # Each number stands for a collective of vectors of one size and type, as in a program that trains one model.
        for number in ("_GRADIENTS", "_CONTROL", "_ENDPOINTS", "_CONNECTED", "_COMPATIBLE", "_NUMBERS", "_BARRIER", "_FIRST_OF_BROADCAST"):
            setattr(all_reduce, number, getattr(all_reduce, number) + 1000)
        return all_reduce.AllReduce(2, index, wire)

    all_reduce._BROADCAST_BYTES = 1000  # some variables are larger, others smaller
    random = np.random.default_rng(7 + index)
    gradients = [random.normal(size=shape).astype(kind) for shape, kind in (((300, 200), "f4"), ((3,), "f2"), ((), "f4"), ((5,), "f8"))]

    def results(reducer: all_reduce.AllReduce) -> dict[str, object]:
        @tf.function(autograph=False)
        def means() -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
            indices = tf.constant(ROWS[index])
            rows = tf.IndexedSlices(tf.cast(indices[:, None] * [1, 2], tf.float32), indices, tf.constant([9, 2]))
            reduced, waited = reducer.mean_gradients([tf.constant(g) for g in gradients], [rows])
            return [tf.convert_to_tensor(mean) for mean in reduced], waited, reducer.total(tf.constant([1.0, index]))

        with reducer.translate_peer_errors():
            reduced, waited, total = means()
        variables = [tf.Variable(index), *(tf.Variable(tf.cast(100 * index + tf.range(count), kind)) for count, kind in SHARED)]
        reducer.broadcast(variables)
        return {
            "shared": [variable.numpy().astype(float).tolist() for variable in variables],
            "means": [mean.numpy().tolist() for mean in reduced[:-1]],
            "types": [mean.dtype.name for mean in reduced[:-1]],
            "rows": reduced[-1].numpy().tolist(),
            "waited": float(waited),
            "total": total.numpy().tolist(),
        }

    def connect_error(has_gpu: bool, version: int | None = None) -> str:
        trainer_version = all_reduce.trainer_version
        all_reduce.trainer_version = lambda: trainer_version() if version is None else version
        reducer = new_reducer()
        reducer._hint = "nccl" if has_gpu else "ring"
        try:
            reducer.connect(NAMES, addresses)
        except WorkloadError as error:
            return str(error)
        finally:
            all_reduce.trainer_version = trainer_version
        return ""

    report: dict[str, object] = {
        "own": [g.tolist() for g in gradients],
        "one GPU": connect_error(index == 1),
        "two GPUs": connect_error(True),
        "two versions": connect_error(False, 10 + index),
        "an old version": connect_error(False, index),
    }
    # The second task connects to the first one, and cannot at the address NOWHERE; in the second case the first one cannot listen, either.
    for wire in ("float32", "bfloat16"):
        reducer = new_reducer(wire)
        timeout, all_reduce._CONNECT_TIMEOUT = all_reduce._CONNECT_TIMEOUT, 1.0
        with patch.object(all_reduce, "Listener", _refuse_to_listen if (wire, index) == ("bfloat16", 0) else rendezvous.Listener):
            report[f"{wire} notice"] = reducer.connect(NAMES, [NOWHERE, addresses[1]])
        all_reduce._CONNECT_TIMEOUT = timeout
        report[f"{wire} TensorFlow"] = results(reducer)
        reducer.barrier()
        report[f"{wire} no notice"] = reducer.connect(NAMES, addresses)
        report[f"{wire} own"] = results(reducer)
        reducer.barrier()
        reducer.close()
    reducer = new_reducer()
    reducer.connect(NAMES, addresses)
    report_and_wait({**report, "two models": _two_models(index, reducer), "tables": _tables(index, reducer)})


def _refuse_to_listen(_: str) -> Any:
    raise OSError


def _two_models(index: int, reducer: Any) -> str:
    import tensorflow as tf

    from trainer.workloads.errors import WorkloadError

    try:
        reducer.broadcast([tf.Variable(tf.zeros([3 + index]))])
    except WorkloadError as error:
        return str(error)
    return ""


def _tables(index: int, reducer: Any) -> dict[str, object]:
    """Train large embedding layers with the other task; return all weights and slots, and their difference from those of a single process."""
    from tests.trainer.engine.drive_embeddings import config_of
    from trainer.engine.collectives.all_reduce import AllReduce
    from trainer.engine.replicated import ReplicatedSession
    from trainer.workloads.loading import load_workload

    def trained(reducer: AllReduce, accumulate: int) -> list[np.ndarray]:
        params = {"model": "functional", "optimizer": "Adagrad"}
        config = config_of(Path(scratch), params, steps=50, gradients={"accumulate": accumulate})
        session = ReplicatedSession(load_workload(config.train), config, reducer)
        session.begin_at(0)
        session.run(50)
        assert session.tables
        return [*session.model.get_weights(), *(variable.numpy() for variable in session.tables.variables)]

    with tempfile.TemporaryDirectory() as scratch:
        values = trained(reducer, 1)
        reducer.barrier()
        single = trained(AllReduce(), 2) if index == 0 else values
    difference = max(float(np.max(np.abs(a - b))) for a, b in zip(values, single, strict=True))
    return {"values": [value.tolist() for value in values], "off": difference}


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
