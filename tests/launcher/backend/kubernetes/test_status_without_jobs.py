"""The tasks of a run whose Jobs are deleted."""

import json
from pathlib import Path

from launcher.backend.kubernetes import status_without_jobs
from launcher.backend.kubernetes.pod_logs import stored_tasks
from launcher.spec.loader import dump, load

SPEC = """\
version: 1
name: digits
strategy: parameter_server
roles: {chief: {}, ps: {}, worker: {replicas: 2}, evaluator: {}}
train: {workload: mnist_mlp}
"""


def test_the_record_has_the_tasks(tmp_path: Path) -> None:
    file = tmp_path / "digits.yaml"
    file.write_text(SPEC)
    record = {"data": {"spec.json": json.dumps(dump(load(file, [])))}}
    assert status_without_jobs.task_names(record) == ["chief", "worker-0", "worker-1", "ps-0", "evaluator"]
    assert status_without_jobs.task_names({"data": {}}) == status_without_jobs.task_names(None) == []


def test_without_a_record_the_stored_logs_have_the_tasks(tmp_path: Path) -> None:
    for name in ("worker-0/digits-worker-0-a", "worker-0/digits-worker-0-b", "chief/digits-chief-0-c"):
        log = tmp_path / f"{name}.log"
        log.parent.mkdir(exist_ok=True)
        log.write_text("2026-01-01T00:00:01.100000000Z one\n")
    assert stored_tasks(tmp_path) == ["chief", "worker-0"]
    assert stored_tasks(tmp_path / "nothing") == []
