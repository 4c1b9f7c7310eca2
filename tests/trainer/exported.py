"""Reads an exported model as a user does: in a separate process that does not need the trainer."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests import forked
from trainer.workloads.protocol import Workload

_PREDICT = """
import sys
import keras, numpy as np, tensorflow as tf
directory, file, *modules = sys.argv[1:]
inputs = np.load(file)
served = tf.saved_model.load(f"{directory}/saved_model")
outputs = {"serve": served.serve(inputs).numpy()}
[outputs["signature"]] = [output.numpy() for output in served.signatures["serving_default"](tf.constant(inputs)).values()]
for module in modules:
    __import__(module)
outputs["keras"] = keras.models.load_model(f"{directory}/model.keras").predict(inputs, batch_size=len(inputs), verbose=0)
np.savez(file + ".npz", **outputs)
imported = {name for name in sys.modules if name.partition(".")[0] in ("trainer", "tests")}
assert imported <= {".".join(module.split(".")[:depth]) for module in modules for depth in range(1, 9)}, imported
"""


def assert_export_matches_metrics(run_dir: Path, workload: Workload, scratch: Path, *modules: str) -> dict[str, Any]:
    """Check that every format gives the loss and accuracy of metrics.json; return the content of that file.

    `modules` define the layers that the Keras file needs beyond Keras's own. A SavedModel needs none.
    """
    best = run_dir / "export" / "best"
    content: dict[str, Any] = json.loads((best / "metrics.json").read_text())
    [(inputs, targets)] = list(workload.eval_data(100_000))
    file = scratch / "inputs.npy"
    np.save(file, inputs.numpy())
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    (scratch / "predict.py").write_text(_PREDICT)
    command = [sys.executable, str(scratch / "predict.py"), str(best), str(file), *modules]
    result = forked.run(command, cwd=scratch, env=environment, preload=forked.TENSORFLOW)
    assert result.returncode == 0, result.stdout + result.stderr
    outputs = np.load(f"{file}.npz")
    assert set(outputs) == {"keras", "serve", "signature"}
    for form, values in outputs.items():
        np.testing.assert_allclose(values, outputs["keras"], rtol=1e-4, atol=1e-5, err_msg=form)
        np.testing.assert_allclose(float(workload.loss(targets, values)), content["metrics"]["loss"], rtol=1e-3, err_msg=form)
        accuracy = float(workload.metrics(targets, values)["accuracy"])
        np.testing.assert_allclose(accuracy, content["metrics"]["accuracy"], rtol=1e-4, err_msg=form)
    return content
