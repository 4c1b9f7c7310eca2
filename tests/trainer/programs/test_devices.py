"""Names of devices, long and short, and tables of them."""

import pytest

from trainer.programs import devices
from trainer.programs.devices import Device
from trainer.programs.text_tables import table


@pytest.mark.parametrize(
    "name, expected",
    [
        ("cpu", Device(None, "cpu")),
        ("GPU:1", Device(None, "gpu", 1)),
        ("chief", Device("chief")),
        ("worker-2", Device("worker-2")),
        ("worker-0/gpu:1", Device("worker-0", "gpu", 1)),
        ("ps-1/cpu", Device("ps-1", "cpu")),
        ("/job:worker/replica:0/task:3/device:GPU:2", Device("worker-3", "gpu", 2)),
        ("/job:chief/replica:0/task:0/device:CPU:0", Device("chief", "cpu", 0)),
        ("/job:ps/task:1", Device("ps-1")),
        ("/device:CPU:0", Device(None, "cpu", 0)),
    ],
)
def test_a_name_is_parsed(name: str, expected: Device) -> None:
    assert devices.parse(name) == expected


@pytest.mark.parametrize("name", ["", "tpu:0", "worker", "gpu:x", "worker-0/disk", "/job:queen/task:0", "evaluator"])
def test_an_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no device"):
        devices.parse(name)


def test_a_short_name_has_the_task_and_the_device() -> None:
    assert devices.short("/job:worker/replica:0/task:0/device:GPU:1") == "worker-0/gpu:1"
    assert devices.short("/job:chief/replica:0/task:0/device:CPU:0") == "chief/cpu:0"


def test_a_name_covers_every_device_that_it_does_not_exclude() -> None:
    gpu = devices.parse("worker-0/gpu:1")
    assert devices.parse("worker-0").covers(gpu)
    assert devices.parse("gpu:1").covers(gpu)
    assert not devices.parse("worker-1").covers(gpu)
    assert not devices.parse("worker-0/gpu:0").covers(gpu)


def test_numbers_are_aligned_to_the_right() -> None:
    assert table(("NAME", "SIZE"), [("a", "1"), ("long name", "1,000")]) == [
        "NAME        SIZE",
        "a              1",
        "long name  1,000",
    ]
    assert table(("NAME",), []) == ["NAME"]
