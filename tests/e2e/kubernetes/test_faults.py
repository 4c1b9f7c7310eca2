"""Two runs that go through the same faults and go on, each from where it was: processes killed, pods deleted and evicted.

One is of parameter servers, with an evaluator, on a volume of one node; the other's workers are alike, and share a volume. Neither
computes anything: test_training_faults.py says what TensorFlow does.
"""

from collections.abc import Iterator

import pytest

from tests.e2e.kubernetes.cluster import stand_in_spec, until
from tests.e2e.kubernetes.faults import ALL_REDUCE, RECOVERY_TIMEOUT, Run, recovering
from tests.e2e.kubernetes.launching import Launcher

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1440), pytest.mark.takes_minutes]

SERVED = """\
strategy: parameter_server
roles: {chief: {}, ps: {replicas: 1}, worker: {replicas: 2}, evaluator: {}}
storage: {access: ReadWriteOnce}
kubernetes: {tensorboard: false}
"""


@pytest.fixture(scope="module")
def runs(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, Run]]:
    """Start both, once for the tests below."""
    served, alike = (
        Run(launcher, "served", ("chief", "worker-0", "worker-1", "ps-0", "evaluator")),
        Run(launcher, "alike", ("chief", "worker-0")),
    )
    for run, options in ((served, SERVED), (alike, ALL_REDUCE)):
        run.start(options + stand_in_spec(checkpoint={"every_seconds": 2}), tmp_path_factory.mktemp("specs") / run.name)
    for run in (served, alike):
        run.await_steady()
    yield served, alike
    for run in (served, alike):
        launcher("down", run.name, "--now", "--delete-data", "--yes")


@pytest.mark.parametrize("task", ["worker-0", "ps-0", "chief", "evaluator"])
def test_a_process_killed_comes_back_in_its_pod(task: str, runs: tuple[Run, Run]) -> None:
    hit = tuple(run for run in runs if task in run.tasks)
    before = [run.pod(task)["metadata"]["uid"] for run in hit]
    with recovering(hit, "process killed", task):
        for run in hit:
            run.kill(task)
    assert [run.pod(task)["metadata"]["uid"] for run in hit] == before


def test_pods_deleted_and_evicted_are_replaced(runs: tuple[Run, Run]) -> None:
    served, alike = runs
    before = {(run, task): run.pod(task) for run, task in ((served, "ps-0"), (served, "evaluator"), (served, "worker-0"), (alike, "chief"))}
    with recovering(runs, "pods deleted and evicted", "ps-0", "evaluator", "worker-0", "chief"):
        served.delete("ps-0")
        served.delete("evaluator")
        served.evict("worker-0")
        alike.delete("chief")
        for (run, task), old in before.items():
            until(lambda run=run, task=task, old=old: run.replaced(task, old), RECOVERY_TIMEOUT, f"another pod of {task}", run.describe)  # type: ignore[misc]
