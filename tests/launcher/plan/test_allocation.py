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
def test_a_task_gets_the_cores_that_it_asks_for_or_a_share_of_the_others(
    wanted: dict[str, float | None], cores: int, expected: list[int]
) -> None:
    assert list(share_cores(wanted, cores).values()) == expected


def test_no_gpu_is_given_twice_and_a_task_gets_all_or_none() -> None:
    wanted = {"chief": Resources(gpus=2), "worker-0": Resources(gpus=4), "worker-1": Resources(gpus=1), "ps-0": Resources()}
    shares = share_gpus(wanted, ["0", "1", "2", "3"])
    assert shares.visible == {"chief": ("0", "1"), "worker-0": (), "worker-1": ("2",), "ps-0": ()}
    assert shares.without == ("worker-0",)


def test_a_group_of_tasks_gets_gpus_for_all_or_none() -> None:
    one_gpu = Resources(gpus=1)
    wanted = {"chief": one_gpu, "worker-0": one_gpu, "worker-1": one_gpu, "evaluator": one_gpu}
    group = ("chief", "worker-0", "worker-1")
    of_three = share_gpus(wanted, ["0", "1", "2"], all_or_none=group)
    assert (of_three.visible["worker-1"], of_three.without) == (("2",), ("evaluator",))
    of_two = share_gpus(wanted, ["0", "1"], all_or_none=group)
    assert of_two.visible == {"chief": (), "worker-0": (), "worker-1": (), "evaluator": ("0",)}
    assert of_two.without == group
