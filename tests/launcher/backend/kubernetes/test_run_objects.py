"""What is refused before any of a run's objects is made."""

import pytest

from launcher.backend.kubernetes.run_objects import refuse_sidecars
from launcher.errors import UsageError


def test_a_cluster_that_does_not_end_sidecars_with_their_task_is_refused() -> None:
    refuse_sidecars((1, 29), "namespace team")
    with pytest.raises(UsageError, match=r"namespace team is Kubernetes 1\.28, which does not end sidecars with their task") as refused:
        refuse_sidecars((1, 28), "namespace team")
    assert refused.value.remedy == "use a cluster of 1.29 or newer, or remove `sidecars`"
