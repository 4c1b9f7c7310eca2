"""One of two tasks that take means first by TensorFlow's all-reduce, as their connection fails, and then by their own; prints JSON.

python drive_ring.py INDEX ADDRESS ADDRESS
"""

import json
import os
import sys

import numpy as np

NAMES = ("worker-0", "worker-1")
NOWHERE = "192.0.2.1:2222"  # an address for documentation, RFC 5737


def main(index: int, addresses: list[str]) -> None:
    """Be task `index`."""
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})
    import tensorflow as tf

    from tests.trainer.engine.drivers import report_and_stay
    from trainer.engine.collectives import all_reduce
    from trainer.workloads.errors import WorkloadError

    random = np.random.default_rng(7 + index)
    gradients = [random.normal(size=shape).astype(kind) for shape, kind in (((300, 200), "f4"), ((3,), "f2"), ((), "f4"), ((5,), "f8"))]

    def told(tasks: all_reduce.AllReduce) -> dict[str, object]:
        @tf.function(autograph=False)
        def means() -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
            found, waited = tasks.mean_gradients([tf.constant(g) for g in gradients])
            return found, waited, tasks.total(tf.constant([1.0, index]))

        with tasks.watching():
            found, waited, total = means()
        return {
            "means": [mean.numpy().tolist() for mean in found],
            "types": [mean.dtype.name for mean in found],
            "waited": float(waited),
            "total": total.numpy().tolist(),
        }

    def refused(has_gpu: bool, number: int | None = None) -> str:
        own = all_reduce.trainer_version
        all_reduce.trainer_version = lambda: own() if number is None else number
        tasks = all_reduce.AllReduce(2, index)
        tasks._hint = "nccl" if has_gpu else "ring"
        try:
            tasks.meet(NAMES, addresses)
        except WorkloadError as error:
            return str(error)
        finally:
            all_reduce.trainer_version = own
        return ""

    report: dict[str, object] = {"own": [g.tolist() for g in gradients], "one GPU": refused(index == 1), "two GPUs": refused(True)}
    report["two versions"] = refused(False, 10 + index)
    report["an old version"] = refused(False, index)
    # The second task connects to the first one; where that is told to be nowhere, it cannot.
    for wire in ("float32", "bfloat16"):
        tasks = all_reduce.AllReduce(2, index, wire)
        usual, all_reduce._MEETING = all_reduce._MEETING, 1.0
        report[f"{wire} notice"] = tasks.meet(NAMES, [NOWHERE, addresses[1]])
        all_reduce._MEETING = usual
        report[f"{wire} TensorFlow"] = told(tasks)
        tasks.barrier()
        report[f"{wire} no notice"] = tasks.meet(NAMES, addresses)
        report[f"{wire} own"] = told(tasks)
        tasks.barrier()
        tasks.close()
    report_and_stay(report)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
