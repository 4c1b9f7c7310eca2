"""The tables of what follows from strategy and role."""

from typing import get_args

from launcher.plan import rules
from trainer.strategies import Strategy


def test_every_strategy_has_its_restart_rules() -> None:
    assert set(rules.RESTART_SCOPE) == set(get_args(Strategy))


def test_names() -> None:
    assert [rules.task_name("chief", 0), rules.task_name("evaluator", 0), rules.task_name("ps", 1)] == ["chief", "evaluator", "ps-1"]
