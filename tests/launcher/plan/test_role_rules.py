"""The tables of rules by strategy and role."""

from typing import get_args

from launcher.plan import role_rules
from trainer.strategies import STRATEGIES, Strategy


def test_every_strategy_has_a_row_and_a_restart_rule_for_each_of_its_roles() -> None:
    assert set(STRATEGIES) == set(get_args(Strategy))
    for name, traits in STRATEGIES.items():
        assert set(traits.restarts) == {*traits.mandatory, *traits.optional}, name


def test_names_of_tasks() -> None:
    assert [role_rules.task_name("chief", 0), role_rules.task_name("evaluator", 0), role_rules.task_name("ps", 1)] == [
        "chief",
        "evaluator",
        "ps-1",
    ]
