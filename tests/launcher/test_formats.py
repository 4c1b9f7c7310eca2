"""Durations, sizes and times as people read and write them."""

import pytest

from launcher import formats
from launcher.errors import UsageError
from launcher.timestamps import rfc3339
from tests.golden_messages import Golden


@pytest.mark.parametrize(
    "seconds, text",
    [
        (-1, "0.0 s"),
        (0.44, "0.4 s"),
        (12.4, "12 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7800, "2 h 10 min"),
        (273_600, "3 d 04 h"),
    ],
)
def test_duration_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert formats.duration(seconds) == text


@pytest.mark.parametrize("passed, text", [(0.2, "just now"), (4, "4 s ago"), (60, "1 min 00 s ago")])
def test_a_past_time_is_shown_as_a_duration_ago(passed: float, text: str) -> None:
    assert formats.ago(1000 - passed, now=1000) == text


@pytest.mark.parametrize("size, text", [(512, "512 B"), (4 * 2**30, "4 GiB"), (3 * 2**29, "1.5 GiB"), (2**41, "2 TiB")])
def test_memory_has_a_binary_unit(size: int, text: str) -> None:
    assert formats.binary_size(size) == text


@pytest.mark.parametrize(
    "size, text",
    [(1_180_000_000, "1.18 GB"), (27_000_000, "27 MB"), (1_500_000_000_000, "1.5 TB"), (999_600_000, "1000 MB"), (2 * 10**18, "2000 PB")],
)
def test_disks_have_a_decimal_unit_and_no_exponent(size: int, text: str) -> None:
    assert formats.decimal_size(size) == text


@pytest.mark.parametrize(
    "number, noun, text",
    [(1, "task", "1 task"), (2, "task", "2 tasks"), (2, "ps", "2 ps"), (1200, "worker", "1,200 workers"), (2, "process", "2 processes")],
)
def test_a_count_has_the_plural_of_its_noun(number: int, noun: str, text: str) -> None:
    assert formats.count(number, noun) == text


@pytest.mark.parametrize("seconds, text", [(2.13, "2.13 s"), (0.0013, "1.3 ms"), (4.2e-5, "42 µs"), (0.9997, "1000 ms"), (1500, "1500 s")])
def test_time_of_a_step_has_a_unit_that_fits(seconds: float, text: str) -> None:
    assert formats.seconds_each(seconds) == text


@pytest.mark.parametrize(
    "text, moment",
    [("10m", 400), ("1h30m", 1000 - 5400), ("1970-01-01T00:01:00Z", 60), ("1970-01-01T01:00:00.5+01:00", 0.5)],
)
def test_since_takes_a_duration_and_a_time(text: str, moment: float) -> None:
    assert formats.parse_since(text, now=1000) == moment


@pytest.mark.parametrize("text", ["yesterday", "10", "10 m", "2026-13-01"])
def test_an_invalid_since_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        formats.parse_since(text)
    assert repr(text) in caught.value.message
    assert "10m" in caught.value.remedy


def test_an_invalid_timeout_is_refused() -> None:
    assert formats.parse_duration_option("1m30s", "--timeout") == 90
    with pytest.raises(UsageError, match="--timeout"):
        formats.parse_duration_option("soon", "--timeout")


@pytest.mark.parametrize("text", ["400d", "0s"])
def test_a_duration_out_of_range_says_the_range(text: str, golden: Golden) -> None:
    for parse in (formats.parse_since, lambda text: formats.parse_duration_option(text, "--timeout")):
        with pytest.raises(UsageError) as caught:
            parse(text)
        golden(caught.value.message, caught.value.remedy)


def test_a_formatted_time_can_be_parsed() -> None:
    assert rfc3339(60.5) == "1970-01-01T00:01:00.500Z"
    assert formats.parse_since(rfc3339(60.5)) == 60.5
    assert rfc3339(formats.parse_since("9999-12-31T23:59:59-01:00")) == "9999-12-31T23:59:59.000Z"


def test_a_metric_that_was_not_finite_is_shown_as_nan() -> None:
    assert formats.metrics({"loss": None, "accuracy": 0.5}) == "loss nan  accuracy 0.5"
