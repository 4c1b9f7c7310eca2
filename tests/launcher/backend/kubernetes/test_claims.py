"""Whether a run's data is where it was, by the claim that is there."""

from typing import Any

import pytest

from launcher.backend.kubernetes import claims


def claim(**head: Any) -> dict[str, Any]:
    return {"metadata": {"name": "digits", "uid": "1", "creationTimestamp": "2026-01-01T00:00:00Z", **head}}


@pytest.mark.parametrize(
    "there, code, words",
    [
        (claim(), None, ""),
        (None, "deleted", "the claim digits was deleted"),
        (claim(deletionTimestamp="2026-01-01T00:00:00Z"), "deleting", "the claim digits is being deleted"),
        (claim(uid="2"), "replaced", "made again (made 2026-01-01T00:00:00Z)"),
        (claim(uid="2", deletionTimestamp="2026-01-01T00:00:00Z"), "replaced", "made again"),
    ],
)
def test_a_claim_that_is_not_the_runs_any_more(there: dict[str, Any] | None, code: str | None, words: str) -> None:
    loss = claims.loss("digits", "1", there)
    assert (loss.code if loss else None) == code
    assert loss is None or words in loss.message


def test_the_claim_is_that_of_the_spec_that_the_run_was_started_with() -> None:
    assert claims.name_of("digits", {"data": {"spec.json": '{"kubernetes": {"claim": "team"}}'}}) == "team"
    assert claims.name_of("digits", {"data": {"spec.json": '{"kubernetes": {"claim": null}}'}}) == "digits"
