"""Facts about this machine."""

import os
from pathlib import Path

from launcher.plan import machine


def test_the_users_choice_of_gpus_is_respected() -> None:
    assert machine.gpus({"CUDA_VISIBLE_DEVICES": "2, GPU-9f"}) == ("2", "GPU-9f")
    assert machine.gpus({"CUDA_VISIBLE_DEVICES": ""}) == ()
    assert machine.gpus({"CUDA_VISIBLE_DEVICES": "-1"}) == ()
    assert machine.gpus({"CUDA_VISIBLE_DEVICES": "0,-1,1"}) == ("0",)


def test_this_machine_has_the_cores_that_this_process_may_use() -> None:
    detected = machine.detect(with_gpus=False)
    assert 1 <= detected.cores <= (os.cpu_count() or 1)
    assert detected.gpus == ()


def test_gpus_are_counted_in_the_output_of_nvidia_smi(tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: H100 (UUID: GPU-1)'\necho 'GPU 1: H100 (UUID: GPU-2)'\n")
    tool.chmod(0o755)
    assert machine._from_nvidia_smi((str(tool),)) == ("0", "1")
    assert machine._from_nvidia_smi((str(tmp_path / "missing"),)) == ()


def test_the_source_directory_of_a_checkout_has_the_trainer() -> None:
    assert (Path(machine.source_directory()) / "trainer" / "settings.py").is_file()


def test_search_paths_are_joined_and_a_single_one_is_unchanged() -> None:
    assert machine.search_path("/code", None, "/mine:/code:", "") == "/code:/mine"
    assert machine.search_path(None, ": ") == ": "  # an empty entry is Python's current directory
