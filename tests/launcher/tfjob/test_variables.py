"""`$(NAME)` by Kubernetes' rules."""

import pytest

from launcher.tfjob.variables import expand, expanded_except, references

VALUES = {"A": "1", "B": "$(A)", "C": "cost $5"}


@pytest.mark.parametrize(
    "text, got",
    [
        ("$(A)-$(A)", "1-1"),
        ("$(B)", "$(A)"),  # a value is not looked into
        ("$(MISSING) ${A} $A", "$(MISSING) ${A} $A"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$(A", "$(A"),
        ("$(date +$(A))", "$(date +$(A))"),  # the first bracket ends the name
        ("100$", "100$"),
        ("$()", "$()"),
    ],
)
def test_words_are_as_a_program_gets_them(text: str, got: str) -> None:
    assert expand(text, VALUES) == got


def test_references_are_found_whether_defined_or_not() -> None:
    assert references("$(A) $$(B) $(MISSING) ${C}") == {"A", "MISSING"}


@pytest.mark.parametrize(
    "text, left, got",
    [
        ("$(A)/$(LATE)", "1/$(LATE)", "1/later"),
        ("$(RUN_DIR)", "$$(RUN_DIR)", "$(RUN_DIR)"),  # undefined in the TFJob, defined in a run
        ("$($(RUN_DIR)", "$$($$(RUN_DIR)", "$($(RUN_DIR)"),  # the first bracket ends the name
        ("$(C)", "cost $$5", "cost $5"),
        ("$$(LATE)", "$$(LATE)", "$(LATE)"),
    ],
)
def test_what_is_left_to_the_cluster_becomes_the_same(text: str, left: str, got: str) -> None:
    assert expanded_except(text, VALUES, is_deferred={"LATE"}.__contains__) == left
    assert expand(left, {"LATE": "later", "RUN_DIR": "/runs/x"}) == got
