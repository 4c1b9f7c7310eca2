"""Small click logs in Criteo's format."""

import gzip
from collections.abc import Iterable
from pathlib import Path


def line(number: int) -> str:
    """Return a line whose first number is `number`; some fields are empty, and even numbers have clicks."""
    numbers = ["" if (number + i) % 5 == 0 else str(number % 7 - i) for i in range(1, 13)]
    categories = ["" if (number + i) % 9 == 0 else f"{(number % 4 + 1) * (i + 1) * 0x9E3779B % 2**32:08x}" for i in range(26)]
    return "\t".join([str(1 - number % 2), str(number), *numbers, *categories])


def write(path: Path, numbers: Iterable[int]) -> None:
    """Write a file with the lines of `numbers`, compressed if its name ends in .gz."""
    text = "".join(f"{line(number)}\n" for number in numbers).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
