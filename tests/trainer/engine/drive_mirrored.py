"""Trains on two logical CPU devices and prints, as JSON, the difference from one process with twice the batch.

It is a process of its own because devices are divided before TensorFlow starts.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

STEPS, BATCH = 20, 8

# name -> the workload's parameters, and settings of `train`.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "clipped, compiled, accumulated": (
        {"optimizer": "SGD", "arguments": {"learning_rate": 1.0}},
        {"gradients": {"clip_global_norm": 0.05, "accumulate": 2}, "jit_compile": True},
    ),
    "accumulated": ({}, {"gradients": {"accumulate": 2}}),
    "normalised by both": ({"normalised": "synchronized"}, {}),
    "optimizer made before its scope": ({"early": True, "schedule": True}, {}),
    "float16": ({}, {"precision": "mixed_float16"}),
}
RESUMED = "clipped, compiled, accumulated"


def main() -> None:
    from tests.trainer.engine.drivers import import_frameworks, keep_sessions

    import_frameworks()
    import keras
    import numpy as np

    from tests.trainer.engine import drive_callbacks
    from tests.trainer.engine.small import Small, small_config
    from trainer.engine.collectives.all_reduce import AllReduce
    from trainer.engine.mirrored import MirroredSession, devices
    from trainer.engine.replicated import ReplicatedSession

    keep_sessions()
    names = devices(2)
    report: dict[str, Any] = {}
    for name, (params, train) in CASES.items():
        keras.config.set_dtype_policy("float32")  # a case's own policy would stay
        sessions: list[Any] = [
            MirroredSession(Small(params), small_config(steps=STEPS, batch_size=BATCH, **train), names),
            ReplicatedSession(Small(params), small_config(steps=STEPS, batch_size=2 * BATCH, **train), AllReduce()),
        ]
        for session in sessions:
            session.begin_at(0)
            session.run(STEPS)
        weights = [[np.asarray(v.value) for v in session.model.trainable_variables] for session in sessions]
        report[name] = max(float(np.max(np.abs(a - b))) for a, b in zip(*weights, strict=True))
        if name == RESUMED:
            report["resumed"] = resume(sessions[0], params, train)
    for layer in ("noise", "dropout", "unseeded"):
        report[layer] = losses_with(layer, names)
    report["callbacks"] = drive_callbacks.train_cases(
        lambda workload, config: MirroredSession(workload, config, names), {"epochs": False, "batches": True}
    )
    print(json.dumps(report), flush=True)


def losses_with(layer: str, names: list[str]) -> dict[str, float | None]:
    """Return the losses of one device and of two on batches that are all the same: in the first step from step 0 and from 5, then in another.

    Before the last, the model draws outside of a step, as in an evaluation.
    """
    import keras
    import numpy as np

    from tests.trainer.engine.small import Alike, small_config
    from trainer.engine.mirrored import MirroredSession

    keras.config.set_dtype_policy("float32")
    losses = {}
    for count in (1, 2):
        for step in (0, 5):
            session = MirroredSession(Alike({layer: True}), small_config(), names[:count])
            session.begin_at(step)
            losses[f"{count} from {step}"] = session.run(1).loss
        session.model(np.zeros((1, 4), np.float32), training=True)
        losses[f"{count} after a draw"] = session.run(1).loss
    return losses


def resume(session: Any, params: dict[str, Any], train: dict[str, Any]) -> float:
    """Resume a run whose rate fell, now with the session's constant rate, 1; return the difference of the rate from that constant."""
    from tests.trainer.engine.small import Small, small_config
    from trainer.engine import model_ops
    from trainer.engine.checkpoints import Checkpoints

    falling = {"schedule": "exponential", "decay_steps": 1}
    before = model_ops.build(Small(params), small_config(learning_rate=falling, batch_size=BATCH, **train))
    with tempfile.TemporaryDirectory() as directory:
        Checkpoints(Path(directory), before.model, before.optimizer, keep=1).save(5)
        restored = Checkpoints(Path(directory), session.model, session.optimizer, keep=1).restore(lambda _: None)
    assert restored is not None
    session.begin_at(restored.step)
    session.run(1)
    return abs(float(session.optimizer.learning_rate.numpy()) - 1.0)


if __name__ == "__main__":
    main()
