"""A small disk of a test's own, which can be full, read-only, or frozen: a process that writes to it then hangs, deaf to signals."""

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

# Of a disk, and how the trainer's `save_failed` begins to name the cause.
FAULTS = {"full": "No space left on device", "read-only": "Read-only file system", "frozen": "it has not answered since"}
_TOOLS = ("mkfs.ext4", "fsfreeze", "losetup")


@dataclass(frozen=True)
class Volume:
    """An ext4 file system in a file, mounted at `place`."""

    place: Path

    def fill(self) -> None:
        """Leave no byte, but for what a file gives back that was being written: see `of_full`."""
        with (self.place / "filler").open("ab", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass
            file.write(b"0")

    @contextmanager
    def _full(self) -> Iterator[None]:
        """Leave no byte, and none that is given back, for a `with` block."""
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
                    (self.place / "filler").unlink()  # makes room again

    def remount(self, how: str) -> None:
        """Make it read-only (`ro`) once nobody writes, or writable (`rw`)."""
        end = time.monotonic() + 30
        while subprocess.run(
            ["mount", "-o", f"remount,{how}", self.place], check=time.monotonic() > end, stderr=subprocess.DEVNULL
        ).returncode:
            time.sleep(0.02)  # a file is being written just now

    def freeze(self) -> None:
        """Have who writes wait."""
        subprocess.run(["fsfreeze", "--freeze", self.place], check=True)

    def thaw(self) -> None:
        """Have them go on."""
        subprocess.run(["fsfreeze", "--unfreeze", self.place], check=True)

    @contextmanager
    def failing(self, fault: str) -> Iterator[None]:
        """Have one of FAULTS for a `with` block."""
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


def of_full(report: dict[str, Any]) -> bool:
    """Return whether a `save_failed` is of a disk that was full before: a file that was being written then has failed, too, and its bytes are free again."""
    return bool(report["free"] is not None and report["free"] < report["size"])


@contextmanager
def mounted(device: str, place: Path) -> Iterator[Volume]:
    """Mount a device; another place where it is mounted has the same file system."""
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", device, place], check=True)
    # A frozen disk must not outlive this process, however that ends: whatever reads it would wait for good, `rm` of its directory as well.
    script = 'cat; fsfreeze --unfreeze "$0" 2>/dev/null; exec umount --lazy "$0"'
    guard = subprocess.Popen(["sh", "-c", script, place], stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield Volume(place)
    finally:
        guard.communicate()
        assert guard.returncode == 0, f"{place} is still mounted"


@contextmanager
def volume(place: Path, image: Path, size: int = 8_000_000, owner: int = 0) -> Iterator[Volume]:
    """Mount a disk of so many bytes, kept in the file `image`; skip the test where that cannot be done."""
    with device(image, size, owner) as disk, mounted(disk, place) as made:
        yield made


@contextmanager
def device(image: Path, size: int, owner: int = 0) -> Iterator[str]:
    """Return the path of a block device of so many bytes, kept in the file `image`, with an ext4 of a user's; skip where that cannot be done."""
    with image.open("wb") as file:
        file.truncate(size)
    missing = next((tool for tool in _TOOLS if shutil.which(tool) is None), "")
    if os.geteuid() or missing:
        pytest.skip(f"only root can make a disk of the test's own{', with ' if missing else ''}{missing}")
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-E", f"root_owner={owner}:{owner}", image], check=True)
    made = subprocess.run(["losetup", "--find", "--show", image], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"there is no loop device for a disk of the test's own: {made.stderr.strip()}")
    try:
        yield made.stdout.strip()
    finally:
        subprocess.run(["losetup", "--detach", made.stdout.strip()], check=True)  # once nobody mounts it
