"""Two runs suffer the same faults and resume, each from its last checkpoint: processes killed, pods deleted and evicted.

One is of parameter servers, with an evaluator, on a volume of one node; the other is an all-reduce on a shared volume. Neither
computes anything: test_training_faults.py tests TensorFlow.
"""

from collections.abc import Iterator

import pytest

from tests.e2e.kubernetes.cluster import stand_in_spec
from tests.e2e.kubernetes.faults import ALL_REDUCE, Run, recovering
from tests.e2e.kubernetes.launching import Launcher

pytestmark = [pytest.mark.kubernetes, pytest.mark.takes_minutes]

SERVED = """\
strategy: parameter_server
roles: {chief: {}, ps: {replicas: 1}, worker: {replicas: 2}, evaluator: {}}
storage: {access: ReadWriteOnce}
kubernetes: {tensorboard: false}
"""


@pytest.fixture(scope="module")
def runs(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, Run]]:
    """Start both, once for the tests below."""
    served, all_reduce = (
        Run(launcher, "served", ("chief", "worker-0", "worker-1", "ps-0", "evaluator")),
        Run(launcher, "all-reduce", ("chief", "worker-0")),
    )
    for run, options in ((served, SERVED), (all_reduce, ALL_REDUCE)):
        run.start(options + stand_in_spec(checkpoint={"every_seconds": 2}), tmp_path_factory.mktemp("specs") / run.name)
    for run in (served, all_reduce):
        run.await_steady()
    yield served, all_reduce
    for run in (served, all_reduce):
        launcher("down", run.name, "--now", "--delete-data", "--yes")


@pytest.mark.parametrize("task", ["worker-0", "ps-0", "chief", "evaluator"])
def test_a_killed_process_restarts_in_its_pod(task: str, runs: tuple[Run, Run]) -> None:
    affected = tuple(run for run in runs if task in run.tasks)
    before = [run.pod(task)["metadata"]["uid"] for run in affected]
    with recovering(affected, "process killed", task):
        for run in affected:
            run.kill(task)
    assert [run.pod(task)["metadata"]["uid"] for run in affected] == before


def test_deleted_and_evicted_pods_are_replaced(runs: tuple[Run, Run]) -> None:
    served, all_reduce = runs
    before = {
        (run, task): run.pod(task) for run, task in ((served, "ps-0"), (served, "evaluator"), (served, "worker-0"), (all_reduce, "chief"))
    }
    with recovering(runs, "pods deleted and evicted", "ps-0", "evaluator", "worker-0", "chief"):
        served.delete("ps-0")
        served.delete("evaluator")
        served.evict("worker-0")
        all_reduce.delete("chief")
        for (run, task), old in before.items():
            run.await_replacement(task, old)
