"""Inspects an image that a test has built, and creates a package to build one with."""

import json
import zipfile
from pathlib import Path
from typing import Any

from launcher.docker_cli import docker


def layers(facts: dict[str, Any]) -> list[str]:
    """Return the digests of an image's layers, the base image's first."""
    digests: list[str] = facts["RootFS"]["Layers"]
    return digests


def inspected(name: str) -> dict[str, Any]:
    """Return the engine's description of an image."""
    facts: dict[str, Any] = json.loads(docker("image", "inspect", name))[0]
    return facts


def output(name: str, *arguments: str, options: tuple[str, ...] = ()) -> str:
    """Return the stdout of a container of the image."""
    return docker("run", "--rm", "--network", "none", "--read-only", "--tmpfs", "/tmp", *options, name, *arguments, timeout=120)


def wheel(directory: Path, name: str) -> Path:
    """Write a wheel with one module that prints hello."""
    path = directory / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "print('hello')\n")
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return path


def check_package(name: str, package: Path) -> None:
    """Check that an image has a package that `wheel` has written."""
    assert output(name, "-c", f"import {package.name.split('-')[0]}", options=("--entrypoint", "python")) == "hello\n"
