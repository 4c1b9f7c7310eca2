"""The facts about this machine that a local plan needs: cores, GPUs, and how its tasks find Python."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_NVIDIA_PROC = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True)
class Machine:
    """One machine. `gpus` are the identifiers that CUDA_VISIBLE_DEVICES takes."""

    cores: int
    gpus: tuple[str, ...] = ()
    python: str = sys.executable
    path: str = ""  # PATH as the launcher has it
    python_path: str = ""  # PYTHONPATH as the launcher has it
    # The directory that holds the `trainer` package where it is run from a checkout; empty when installed.
    source: str = ""


def detect(*, with_gpus: bool) -> Machine:
    """Return this machine. GPUs are looked for only when asked: it can mean running nvidia-smi."""
    return Machine(
        cores=cores(),
        gpus=gpus(os.environ) if with_gpus else (),
        python=sys.executable,
        path=os.environ.get("PATH", os.defpath),
        python_path=os.environ.get("PYTHONPATH", ""),
        source=source_directory(),
    )


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpus(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs a task may be given: those of CUDA_VISIBLE_DEVICES when it is set, else all there are."""
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return tuple(part.strip() for part in chosen.split(",") if part.strip() not in {"", "-1", "NoDevFiles"})
    if _NVIDIA_PROC.is_dir():
        return tuple(str(index) for index in range(len(list(_NVIDIA_PROC.iterdir()))))
    return _from_nvidia_smi(("nvidia-smi", "-L")) if shutil.which("nvidia-smi") else ()


def _from_nvidia_smi(command: Sequence[str]) -> tuple[str, ...]:
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    found = sum(line.startswith("GPU ") for line in listed.splitlines())
    return tuple(str(index) for index in range(found))


def search_path(*parts: str | None) -> str:
    """Return the directories of several search paths, as PATH and PYTHONPATH are, in order and each once; one alone as it is written."""
    given = [part for part in parts if part]
    if len(given) == 1:
        return given[0]
    directories = [directory for part in given for directory in part.split(os.pathsep) if directory]
    return os.pathsep.join(dict.fromkeys(directories))


def source_directory() -> str:
    """Return the directory that tasks need on PYTHONPATH to find this very `trainer`; empty when it is installed."""
    directory = Path(__file__).resolve().parent.parent.parent
    return "" if directory.name in {"site-packages", "dist-packages"} else str(directory)
