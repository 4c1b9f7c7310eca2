"""What is read of a run's volume on a cluster, up to the pod: the rest takes a cluster, see tests/e2e/kubernetes."""

from types import SimpleNamespace
from typing import Any, cast

from launcher.backend.kubernetes.api import Cluster
from launcher.backend.kubernetes.fetching import _of_jobs

GPU = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def test_of_a_run_that_kubectl_has_applied_its_jobs_say_what_is_tolerated() -> None:
    pod: dict[str, Any] = {
        "volumes": [{"name": "run", "persistentVolumeClaim": {"claimName": "digits"}}],
        "tolerations": [GPU, {"key": "lost", "operator": "Exists", "tolerationSeconds": 5}],
        "containers": [{"image": "mine"}],
    }
    cluster = SimpleNamespace(
        listed=lambda *_: [{"spec": {"template": {"spec": pod}}}], get=lambda *_: {"spec": {"accessModes": ["ReadWriteOnce"]}}
    )
    run = _of_jobs(cast("Cluster", cluster), "digits")
    assert run is not None
    assert [one.model_dump(exclude_none=True) for one in run.options.tolerations] == pod["tolerations"]
