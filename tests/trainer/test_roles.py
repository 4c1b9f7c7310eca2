"""The import of a user's module; the notice of a task whose GPUs TensorFlow does not use; test_task.py checks that a task reports it."""

import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.trainer.engine.small import small_config
from trainer import roles

DRAWING = """
import random
import numpy
DRAWN = (numpy.random.permutation(100).tolist(), random.random())
class Drawing:
    def __init__(self, params, data, seed): pass
    def model(self): pass
    optimizer = loss = metrics = train_data = eval_data = model
"""


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(roles, "DEVICES", tmp_path)
    return tmp_path


def test_a_task_without_gpus_has_no_notice(devices: Path) -> None:
    for name in ("null", "nvidiactl", "nvidia-uvm"):
        (devices / name).touch()
    assert not roles.unused_gpus({})


def test_a_task_that_may_not_use_its_gpus_has_no_notice(devices: Path) -> None:
    (devices / "nvidia0").touch()
    assert not roles.unused_gpus({"CUDA_VISIBLE_DEVICES": ""})
    assert not roles.unused_gpus({"CUDA_VISIBLE_DEVICES": "-1"})


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a GPU, which TensorFlow may use")
def test_a_task_whose_gpus_are_not_used_has_a_notice(devices: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (devices / name).touch()
    assert roles.unused_gpus({}).startswith("TensorFlow uses no GPU, and this task has 2: it ")
    assert " has 1: " in roles.unused_gpus({"CUDA_VISIBLE_DEVICES": "1"})


def test_random_numbers_drawn_at_import_follow_the_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "drawing.py").write_text(DRAWING)
    monkeypatch.syspath_prepend(tmp_path)

    def drawn(seed: int, before: int) -> Any:
        np.random.seed(before)  # noqa: NPY002 - the state that users' modules draw from
        random.seed(before)
        sys.modules.pop("drawing", None)
        context: Any = SimpleNamespace(config=small_config(seed, workload="drawing:Drawing"), report=lambda *_, **__: None)
        roles._workload(context)
        return sys.modules.pop("drawing").DRAWN

    first = drawn(seed=1, before=10)
    assert drawn(seed=1, before=11) == first
    assert drawn(seed=2, before=10) != first
