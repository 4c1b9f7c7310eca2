"""The notice of a task whose GPUs TensorFlow does not use; test_task.py checks that a task reports it."""

from pathlib import Path

import pytest

from trainer import roles


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
