"""docs/embeddings.md: its model trains with its spec on parameter servers, and its programs read what the run has stored."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests import forked
from tests.integration.running import Run

PAGE = (Path(__file__).parents[2] / "docs" / "embeddings.md").read_text(encoding="utf-8")
STEPS = 20
COMPARED = """
import numpy as np
assert np.allclose(clicks, model(asked), atol=1e-6)
assert not [name for name in sys.modules if name.partition(".")[0] in ("trainer", "launcher")]
"""


def block(language: str, mark: str) -> str:
    (text,) = [text for text in re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE) if mark in text]
    return str(text)


@pytest.mark.slow
def test_the_model_of_the_page_is_trained_exported_and_served(tmp_path: Path) -> None:
    (tmp_path / "my_model.py").write_text(block("python", "def model("))
    (tmp_path / "cluster.yaml").write_text(block("yaml", "name: recommender"))
    overrides = ["--set", f"train.steps={STEPS}", "--set", "roles.worker.replicas=1", "--set", "train.evaluate.every_steps=0"]
    result = forked.launcher("up", "cluster.yaml", *overrides, cwd=tmp_path, preload=forked.TENSORFLOW)
    assert result.returncode == 0, result.stdout + result.stderr
    notices = [event["message"] for event in Run("recommender", tmp_path / "runs").events("chief", "notice")]
    assert any(
        "embedding layers on 2 ps: users (1,000,000 x 16, 64 MB); 128 MB with the optimizer's slots" in notice for notice in notices
    ), notices
    assert any("the model is exported as a SavedModel alone" in notice for notice in notices), notices
    assert forked.launcher("get", "recommender", cwd=tmp_path).returncode == 0
    exported = json.loads((tmp_path / "recommender-model" / "metrics.json").read_text())
    assert (exported["step"], exported["formats"]) == (STEPS, ["saved_model"])
    restored = block("python", "tf.train.Checkpoint").replace("ckpt-100000", f"ckpt-{STEPS}")
    (tmp_path / "read.py").write_text("import sys\n" + block("python", "tf.saved_model.load") + restored + COMPARED)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    reading = forked.run([sys.executable, str(tmp_path / "read.py")], cwd=tmp_path, env=environment, preload=forked.TENSORFLOW)
    assert reading.returncode == 0, reading.stdout + reading.stderr
