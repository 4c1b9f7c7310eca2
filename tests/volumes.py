"""A small disk of a test's own, which can be full, read-only, or frozen: a process that writes to a frozen disk hangs and ignores signals."""

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# Faults of a disk, and the beginning of the cause in the trainer's `save_failed`.
FAULTS = {"full": "No space left on device", "read-only": "Read-only file system", "frozen": "it has not answered since"}
_TOOLS = ("mkfs.ext4", "fsfreeze", "losetup")


@dataclass(frozen=True)
class Volume:
    """An ext4 file system in a file, mounted at `path`."""

    path: Path

    def fill(self) -> None:
        """Leave no free byte, except those that a file being written releases when it fails: see `is_disk_full`."""
        with (self.path / "filler").open("ab", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass
            file.write(b"0")

    @contextmanager
    def _full(self) -> Iterator[None]:
        """Leave no free byte for a `with` block, not even those that failed writes release."""
        ended = threading.Event()

        def refill() -> None:
            while not ended.wait(0.1):
                self.fill()

        self.fill()
        with ThreadPoolExecutor(1) as pool:
            refilling = pool.submit(refill)
            try:
                yield
            finally:
                ended.set()
                try:
                    refilling.result()
                finally:
                    (self.path / "filler").unlink()  # makes room again

    def remount(self, option: str) -> None:
        """Make it read-only (`ro`) once no file is being written, or writable (`rw`)."""
        end = time.monotonic() + 30
        while subprocess.run(
            ["mount", "-o", f"remount,{option}", self.path], check=time.monotonic() > end, stderr=subprocess.DEVNULL
        ).returncode:
            time.sleep(0.02)  # a file is being written just now

    def freeze(self) -> None:
        """Block all writes."""
        subprocess.run(["fsfreeze", "--freeze", self.path], check=True)

    def thaw(self) -> None:
        """Unblock writes."""
        subprocess.run(["fsfreeze", "--unfreeze", self.path], check=True)

    @contextmanager
    def failing(self, fault: str) -> Iterator[None]:
        """Cause one of FAULTS for a `with` block."""
        with {"full": self._full, "read-only": self._read_only, "frozen": self._frozen}[fault]():
            yield

    @contextmanager
    def _read_only(self) -> Iterator[None]:
        self.remount("ro")
        try:
            yield
        finally:
            self.remount("rw")

    @contextmanager
    def _frozen(self) -> Iterator[None]:
        self.freeze()
        try:
            yield
        finally:
            self.thaw()


def is_disk_full(report: dict[str, Any]) -> bool:
    """Return whether a `save_failed` reports a full disk. The save that fails as the disk fills up does not: its bytes are free again."""
    return bool(report["free"] is not None and report["free"] < report["size"])


@contextmanager
def mounted(device: str, path: Path) -> Iterator[Volume]:
    """Mount a device. It may be mounted at several paths, which then show the same file system."""
    path.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", device, path], check=True)
    # A frozen disk must not outlive this process, however that ends: every reader would wait forever, even `rm` of its directory.
    script = 'cat; fsfreeze --unfreeze "$0" 2>/dev/null; exec umount --lazy "$0"'
    guard = subprocess.Popen(["sh", "-c", script, path], stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield Volume(path)
    finally:
        guard.communicate()
        assert guard.returncode == 0, f"{path} is still mounted"


@contextmanager
def volume(path: Path, image: Path, size: int = 8_000_000, owner: int = 0) -> Iterator[Volume]:
    """Mount a disk of `size` bytes, stored in the file `image`; skip the test if that is impossible."""
    with device(image, size, owner) as disk, mounted(disk, path) as mount:
        yield mount


@contextmanager
def device(image: Path, size: int, owner: int = 0) -> Iterator[str]:
    """Return the path of a block device of `size` bytes, stored in the file `image`, with an ext4 that `owner` owns; skip if that is impossible."""
    with image.open("wb") as file:
        file.truncate(size)
    missing = next((tool for tool in _TOOLS if shutil.which(tool) is None), "")
    if os.geteuid() or missing:
        pytest.skip(f"only root can create a disk for a test{', with ' if missing else ''}{missing}")
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-E", f"root_owner={owner}:{owner}", image], check=True)
    loop = subprocess.run(["losetup", "--find", "--show", image], capture_output=True, text=True, check=False)
    if loop.returncode:
        pytest.skip(f"there is no loop device for a disk of the test's own: {loop.stderr.strip()}")
    try:
        yield loop.stdout.strip()
    finally:
        subprocess.run(["losetup", "--detach", loop.stdout.strip()], check=True)  # takes effect when nothing mounts it any more
