"""Values in a Compose file: images, texts, limits and bind mounts. Pure."""

import os
from pathlib import Path
from typing import Any

from launcher.images import is_trainer_image

IMAGE_VARIABLE = "TRAINER_IMAGE"
_MEBI, _GIBI = 1024**2, 1024**3


def image(name: str) -> str:
    """Return an image's name; a variable can replace the name of our own image."""
    return f"${{{IMAGE_VARIABLE}:-{name}}}" if is_trainer_image(name) else escaped(name)


def escaped(value: str) -> str:
    """Return a text in which Compose replaces no variables."""
    return value.replace("$", "$$")


def resource_limits(cpu: float | None, memory: int | None) -> dict[str, Any]:
    """Return the limits of a service: cores, and memory in bytes, without swap."""
    limits: dict[str, Any] = {} if cpu is None else {"cpus": cpu}
    return limits | ({} if memory is None else {"mem_limit": _size(memory), "memswap_limit": _size(memory)})


def bind_relative(path: str, target: str, directory: Path, *, read_only: bool = True) -> dict[str, Any]:
    """Return a directory of this machine, mounted at `target`; its path is relative to the file's `directory`."""
    relative = os.path.relpath(path, directory)
    return bind_mount(relative if relative.startswith("..") else f"./{relative}", target, read_only=read_only)


def bind_mount(source: str, target: str, *, read_only: bool) -> dict[str, Any]:
    """Return a directory of the engine's machine, mounted at `target`."""
    mode = {"read_only": True} if read_only else {}
    return {"type": "bind", "source": escaped(source), "target": escaped(target), **mode, "bind": {"create_host_path": False}}


def _size(size: int) -> str:
    for unit, letter in ((_GIBI, "g"), (_MEBI, "m"), (1024, "k")):
        if size % unit == 0:
            return f"{size // unit}{letter}"
    return f"{size}b"
