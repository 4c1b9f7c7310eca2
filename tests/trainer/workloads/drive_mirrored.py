"""Trains cifar10 mirrored over two logical CPUs, and in one process with a batch as large as both; prints, as JSON, how they compare.

Usage: drive_mirrored.py SCRATCH. It runs in its own process, because devices are configured once, before TensorFlow starts.
"""

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

STEPS = 12


def main(scratch: str) -> None:
    from trainer.captured_import import capture_import

    with capture_import():  # as the trainer does: the garbage collector then ignores imported objects
        import keras  # noqa: F401
        import tensorflow  # noqa: F401, ICN001

    import numpy as np

    from trainer.engine import model_ops, moving_averages
    from trainer.engine.collectives.all_reduce import AllReduce
    from trainer.engine.mirrored import MirroredSession, devices
    from trainer.engine.replicated import ReplicatedSession
    from trainer.engine.train_config import TrainConfig, train_config
    from trainer.settings import TrainerSettings
    from trainer.workloads.cifar10 import Cifar10

    params = {"filters": 8, "learning_rate": 0.1}
    workload = Cifar10(params, "synthetic", 0)

    def config_of(batch_size: int) -> TrainConfig:
        train = {"workload": "cifar10", "batch_size": batch_size, "params": params}
        return train_config(TrainerSettings.model_validate({"run": "drive", "run_dir": scratch, "scratch_dir": scratch, "train": train}))

    def values(session: Any) -> dict[str, Any]:
        variables = (*session.model.variables, *session.optimizer.variables)
        return {f"{number} {variable.name}": np.asarray(variable.value) for number, variable in enumerate(variables)}

    mirrored = MirroredSession(workload, config_of(8), devices(2))
    single = ReplicatedSession(workload, config_of(16), AllReduce())
    report: dict[str, Any] = {"replicas": mirrored.replicas, "losses": [], "rates": []}
    before = values(mirrored)
    for session in (mirrored, single):
        session.begin_at(0)
        report["losses"].append([session.run(STEPS // 3).loss for _ in range(3)])
        optimizer: Any = session.optimizer
        report["rates"].append(optimizer.get_config()["learning_rate"]["config"]["decay_steps"])
    after, expected = values(mirrored), values(single)
    report["differences"] = {
        name: float(np.max(np.abs(value - actual))) for (name, value), actual in zip(expected.items(), after.values(), strict=True)
    }
    report["moved"] = {name: float(np.max(np.abs(value - before[name]))) for name, value in after.items()}
    report["evaluations"] = []
    for session in (mirrored, single):
        evaluate = model_ops.evaluation(workload, session.model, 500)
        with moving_averages.swapped_in(session.model, session.optimizer):
            averaged = evaluate()["loss"]
        report["evaluations"].append([averaged, evaluate()["loss"]])
    report["unchanged"] = all(np.array_equal(value, after[name]) for name, value in values(mirrored).items())
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
