"""The training process, as the user's code finds it."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHOWS = """
import os

class Shows:
    def __init__(self, params, data, seed):
        raise RuntimeError("growth is " + os.environ["TF_FORCE_GPU_ALLOW_GROWTH"])
"""


def test_a_gpus_memory_is_taken_as_it_is_needed(tmp_path: Path) -> None:
    """The variable is the only way that all of TensorFlow hears of, its servers included; what comes of it shows on a GPU alone."""
    (tmp_path / "shows.py").write_text(SHOWS, encoding="utf-8")
    settings = {
        "run": "shows",
        "run_dir": str(tmp_path),
        "scratch_dir": str(tmp_path),
        "train": {"workload": "shows:Shows", "steps": 1, "batch_size": 1},
    }
    environment = {name: value for name, value in os.environ.items() if name != "TF_FORCE_GPU_ALLOW_GROWTH"} | {
        "PYTHONPATH": str(tmp_path),
        "TF_CONFIG": json.dumps({"cluster": {"chief": ["127.0.0.1:1"]}, "task": {"type": "chief", "index": 0}}),
        "TRAINER_SETTINGS": json.dumps(settings),
    }
    done = subprocess.run(
        [sys.executable, "-m", "trainer.task"], env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 2
    assert "growth is true" in done.stderr
