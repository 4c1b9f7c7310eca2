"""The order in which tasks are asked to stop."""

import json

import pytest

from launcher.plan import role_rules
from launcher.plan.models import Plan, Resources, RestartRule, RoleName, Task
from launcher.runs import stop_order

NAMES: dict[str, RoleName] = {"chief": "chief", "worker-0": "worker", "ps-0": "ps", "evaluator": "evaluator"}


def plan_for(strategy: str, *, trains: bool) -> Plan:
    env = {"TRAINER_SETTINGS": json.dumps({"train": {}} if trains else {})}
    tasks = tuple(
        Task(name, role, 0, "", {}, (), env, Resources(), RestartRule("alone", 0), mounts_run_dir=True) for name, role in NAMES.items()
    )
    end_grace_periods = role_rules.end_grace_periods(strategy, worker=10, evaluator=600, peer=20)
    return Plan("run", "local", strategy, "", tasks, "/runs/run", 600, 20, None, ("chief",), end_grace_periods)


def test_servers_are_asked_to_stop_after_the_tasks_that_save() -> None:
    assert stop_order.stop_groups(plan_for("parameter_server", trains=True)) == [{"chief", "evaluator"}, {"worker-0", "ps-0"}]
    assert stop_order.stop_groups(plan_for("multi_worker_mirrored", trains=True)) == [set(NAMES)]


@pytest.mark.parametrize(
    "strategy, trains, expected",
    [
        ("parameter_server", True, {"ps-0": 20, "worker-0": 20}),
        ("manual", True, {"ps-0": 20, "worker-0": 20}),
        ("parameter_server", False, {"ps-0": 0, "worker-0": 10, "evaluator": 600}),
        ("multi_worker_mirrored", False, {"worker-0": 20, "evaluator": 600}),
    ],
)
def test_time_to_end_at_the_end_of_a_run(strategy: str, trains: bool, expected: dict[str, float]) -> None:
    plan = plan_for(strategy, trains=trains)
    assert {task.name: stop_order.end_grace(plan, task) for task in plan.tasks if task.name in expected} == expected
