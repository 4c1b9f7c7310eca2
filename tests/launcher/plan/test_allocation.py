"""Sharing out cores and GPUs."""

import pytest

from launcher.plan.models import Resources
from launcher.plan.planner import share_cores, share_gpus


@pytest.mark.parametrize(
    "wanted, cores, expected",
    [
        ({"chief": None}, 2, [2]),
        ({"chief": None, "ps-0": None, "worker-0": None, "worker-1": None}, 2, [1, 1, 1, 1]),
        ({"chief": 3.0, "worker-0": None, "worker-1": None}, 8, [3, 3, 2]),
        ({"chief": 0.1, "worker-0": 2.6}, 4, [1, 3]),
        ({"chief": 64.0, "worker-0": None}, 4, [64, 1]),
        ({}, 4, []),
    ],
)
def test_threads(wanted: dict[str, float | None], cores: int, expected: list[int]) -> None:
    assert list(share_cores(wanted, cores).values()) == expected


def test_no_gpu_is_given_twice_and_a_task_gets_all_or_none() -> None:
    wanted = {"chief": Resources(gpus=2), "worker-0": Resources(gpus=4), "worker-1": Resources(gpus=1), "ps-0": Resources()}
    given = share_gpus(wanted, ["0", "1", "2", "3"])
    assert given.visible == {"chief": ("0", "1"), "worker-0": (), "worker-1": ("2",), "ps-0": ()}
    assert given.without == ("worker-0",)


def test_tasks_that_must_be_alike_all_get_gpus_or_none() -> None:
    one = Resources(gpus=1)
    wanted = {"chief": one, "worker-0": one, "worker-1": one, "evaluator": one}
    alike = ("chief", "worker-0", "worker-1")
    enough = share_gpus(wanted, ["0", "1", "2"], all_or_none=alike)
    assert (enough.visible["worker-1"], enough.without) == (("2",), ("evaluator",))
    short = share_gpus(wanted, ["0", "1"], all_or_none=alike)
    assert short.visible == {"chief": (), "worker-0": (), "worker-1": (), "evaluator": ("0",)}
    assert short.without == alike
