"""`$(NAME)` by Kubernetes' rules."""

import pytest

from launcher.tfjob.variables import Variables, expand, references

VALUES = {"A": "1", "B": "$(A)", "C": "cost $5"}


@pytest.mark.parametrize(
    "text, expected",
    [
        ("$(A)-$(A)", "1-1"),
        ("$(B)", "$(A)"),  # values are not expanded again
        ("$(MISSING) ${A} $A", "$(MISSING) ${A} $A"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$(A", "$(A"),
        ("$(date +$(A))", "$(date +$(A))"),  # the first bracket ends the name
        ("100$", "100$"),
        ("$()", "$()"),
    ],
)
def test_references_are_expanded_as_by_the_kubelet(text: str, expected: str) -> None:
    assert expand(text, VALUES) == expected


def test_references_are_found_whether_defined_or_not() -> None:
    assert references("$(A) $$(B) $(MISSING) ${C}") == {"A", "MISSING"}


@pytest.mark.parametrize(
    "text, rewritten, expected",
    [
        ("$(A)/$(LATE)", "1/$(LATE)", "1/later"),
        ("$(RUN_DIR)", "$$(RUN_DIR)", "$(RUN_DIR)"),  # undefined in the TFJob, defined in a run
        ("$($(RUN_DIR)", "$$($$(RUN_DIR)", "$($(RUN_DIR)"),  # the first bracket ends the name
        ("$(C)", "cost $$5", "cost $5"),
        ("$$(LATE)", "$$(LATE)", "$(LATE)"),
    ],
)
def test_the_cluster_expands_deferred_references_to_the_same_text(text: str, rewritten: str, expected: str) -> None:
    assert Variables(VALUES, {"LATE"}).expanded_except_deferred(text) == rewritten
    assert expand(rewritten, {"LATE": "later", "RUN_DIR": "/runs/x"}) == expected
