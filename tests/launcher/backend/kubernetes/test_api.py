"""What an API server tells, as the launcher takes it."""

import pytest

from launcher.backend.kubernetes.api import numbers


@pytest.mark.parametrize("minor, read", [("34", 34), ("29+", 29)])
def test_a_version_may_have_more_than_digits(minor: str, read: int) -> None:
    assert numbers({"major": "1", "minor": minor, "gitVersion": f"v1.{minor}"}) == (1, read)
