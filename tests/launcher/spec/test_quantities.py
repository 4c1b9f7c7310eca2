"""Quantities: the values of valid ones, and the remedies for invalid ones."""

import pytest

from launcher.spec.problems import FieldError
from launcher.spec.quantities import millicores, parse_cpu, parse_duration, parse_memory


@pytest.mark.parametrize("written, cores", [(2, 2.0), (0.25, 0.25), ("500m", 0.5), ("4", 4.0), ("1.5", 1.5), ("1m", 0.001)])
def test_cpu(written: object, cores: float) -> None:
    assert parse_cpu(written) == cores


@pytest.mark.parametrize("cores, thousandths", [(1.1, 1100), (2.2, 2200), (0.001, 1), (0.0015, 2), (4.35, 4350), (1024.0, 1024000)])
def test_cores_are_counted_in_thousandths(cores: float, thousandths: int) -> None:
    assert millicores(cores) == thousandths


@pytest.mark.parametrize(
    "written", [0, -1, "0.0", "0m", "1.5m", "two", "", "2 ", "2\n", "m", True, None, [], float("nan"), float("inf"), "٣"]
)
def test_invalid_cpu(written: object) -> None:
    with pytest.raises(FieldError):
        parse_cpu(written)


@pytest.mark.parametrize(
    "written, size",
    [("4Gi", 4 * 2**30), ("512M", 512 * 10**6), ("1.5Gi", 3 * 2**29), ("100k", 10**5), ("64Ki", 2**16), ("2Ti", 2**41), ("1E", 10**18)],
)
def test_memory(written: str, size: int) -> None:
    assert parse_memory(written) == size


@pytest.mark.parametrize(
    "written, remedy",
    [
        (8, "write 8Gi, if gibibytes are meant"),
        ("4", "write 4Gi"),
        ("4GB", "write 4G"),
        ("4gb", "write 4G"),
        ("4GiB", "write 4Gi"),
        ("4g", "write 4Gi"),
        ("512m", "write 512Mi"),
        ("20 Gi", "write 20Gi"),
        ("100b", "write the size, for example 4Gi"),
        ("0Gi", "write a size of at least one byte"),
        ("big", "write the size, for example 4Gi"),
        (True, "write the size, for example 4Gi"),
        ("4Gi\n", "write the size, for example 4Gi"),
    ],
)
def test_invalid_memory(written: object, remedy: str) -> None:
    with pytest.raises(FieldError) as caught:
        parse_memory(written)
    assert caught.value.remedy == remedy


@pytest.mark.parametrize(
    "written, seconds",
    [
        ("90s", 90.0),
        ("10m", 600.0),
        ("24h", 86400.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        ("500ms", 0.5),
        ("2d", 172800.0),
        ("1d1h1m1s", 90061.0),
    ],
)
def test_duration(written: str, seconds: float) -> None:
    assert parse_duration(written) == seconds


@pytest.mark.parametrize(
    "written, remedy",
    [
        (30, "write 30s, if seconds are meant"),
        ("90", "write 90s"),
        ("5 min", "write 5m"),
        ("2 hours", "write 2h"),
        ("5M", "write 5m"),
        ("0s", "write a duration in that range"),
        ("400d", "write a duration in that range"),
        ("soon", "write the duration, for example 10m"),
        ("-5m", "write the duration, for example 10m"),
        ("10m\n", "write the duration, for example 10m"),
        (None, "write the duration, for example 10m"),
    ],
)
def test_invalid_duration(written: object, remedy: str) -> None:
    with pytest.raises(FieldError) as caught:
        parse_duration(written)
    assert caught.value.remedy == remedy
