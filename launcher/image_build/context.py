"""The build context that is sent to the engine: images/Dockerfile and what it copies, as one tar archive.

It is the same from a checkout and from an installed wheel, which has these files beside this module. It is passed on stdin and not
as a directory, because some installations of the docker command cannot read outside the home directory.
"""

import hashlib
import io
import re
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import launcher

DOCKERFILE = "images/Dockerfile"
# Files that the Dockerfile copies besides the packages; pyproject.toml puts the same files into the wheel.
FILES = (DOCKERFILE, "images/install.sh", "images/slim.py", "requirements/image.txt", "requirements/image-gpu.txt", "LICENSE")

# The trainer; the launcher for the attendant of a run on Kubernetes.
PACKAGES = ("trainer", "launcher")

_INSTALLED = Path(launcher.__file__).parents[1]  # the directory of both packages
_SHIPPED = Path(__file__).with_name("context")
_ROOT = _SHIPPED if _SHIPPED.is_dir() else _INSTALLED


def archive(packages: Sequence[str] = PACKAGES) -> bytes:
    """Return the context as a tar archive: the same bytes for the same files, without their owners and times."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, path in _files(packages):
            content = path.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o644
            tar.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def source_digest() -> str:
    """Return the digest of the package `trainer` and of FILES, from which the trainer's part of an image is built. A change of the launcher alone makes no image stale."""
    return hashlib.sha256(archive(["trainer"])).hexdigest()[:16]


def default_base_image() -> str:
    """Return the base image that the Dockerfile names."""
    match = re.search(r"^ARG BASE_IMAGE=(\S+)", (_ROOT / DOCKERFILE).read_text(encoding="utf-8"), re.MULTILINE)
    assert match is not None  # noqa: S101 - the file is the project's own
    return match[1]


def _files(packages: Sequence[str]) -> Iterator[tuple[str, Path]]:
    for name in FILES:
        yield name, _ROOT / name
    for path in sorted(path for package in packages for path in (_INSTALLED / package).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and not path.is_relative_to(_SHIPPED):
            yield path.relative_to(_INSTALLED).as_posix(), path
