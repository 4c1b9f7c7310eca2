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
STEPS = 100
COMPARED = """
import numpy as np
assert np.allclose(clicks, model(asked), atol=1e-6)
assert not [name for name in sys.modules if name.partition(".")[0] in ("trainer", "launcher")]
"""


def block(language: str, mark: str) -> str:
    (found,) = [one for one in re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE) if mark in one]
    return str(found)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_pages_model_is_trained_exported_and_served_as_it_stands_there(tmp_path: Path) -> None:
    (tmp_path / "my_model.py").write_text(block("python", "def model("))
    (tmp_path / "cluster.yaml").write_text(block("yaml", "name: recommender"))
    smaller = ["--set", f"train.steps={STEPS}", "--set", "roles.worker.replicas=1", "--set", "train.evaluate.every_steps=0"]
    done = forked.launcher("up", "cluster.yaml", *smaller, cwd=tmp_path, timeout=200, preload=forked.TENSORFLOW)
    assert done.returncode == 0, done.stdout + done.stderr
    told = [event["message"] for event in Run("recommender", tmp_path / "runs").events("chief", "notice")]
    assert any("embedding layers on 2 ps: users (1,000,000 x 16, 64 MB); 128 MB with the optimizer's slots" in one for one in told), told
    assert any("the model is exported as a SavedModel alone" in one for one in told), told
    assert forked.launcher("get", "recommender", cwd=tmp_path).returncode == 0
    facts = json.loads((tmp_path / "recommender-model" / "metrics.json").read_text())
    assert (facts["step"], facts["formats"]) == (STEPS, ["saved_model"])
    restored = block("python", "tf.train.Checkpoint").replace("ckpt-100000", f"ckpt-{STEPS}")
    (tmp_path / "read.py").write_text("import sys\n" + block("python", "tf.saved_model.load") + restored + COMPARED)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    read = forked.run([sys.executable, str(tmp_path / "read.py")], cwd=tmp_path, env=environment, timeout=100, preload=forked.TENSORFLOW)
    assert read.returncode == 0, read.stdout + read.stderr
