"""Formats numbers of bytes for people."""


def byte_size(size: int) -> str:
    """Return a number of bytes with the unit that keeps it short."""
    number, unit = float(size), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if number < 1000:
            break
        number, unit = number / 1000, larger
    return f"{number:.3g} {unit}"
