"""Local copies of runs on clusters: runs of one name in several namespaces stay apart."""

import dataclasses
import os
from pathlib import Path

import pytest

from launcher.backend.kubernetes.pod_logs import stored_lines
from launcher.runs import cluster_state
from launcher.runs.cluster_state import NamespaceRef

HERE = NamespaceRef("kind", "default")
TEAM = NamespaceRef("kind", "team-a", is_explicit=True)
FAR = NamespaceRef("arn:aws:eks:eu-west-1:4711:cluster/far", "default")
NAMESPACES = (
    HERE,
    TEAM,
    FAR,
    NamespaceRef("../kind", "default"),
    NamespaceRef(".", "default"),
    NamespaceRef(None, "default"),
    NamespaceRef("@", "default"),
)


def test_each_namespace_has_a_directory_of_its_own_below_the_runs(tmp_path: Path) -> None:
    directories = [cluster_state.directory(tmp_path, ref, "mnist") for ref in NAMESPACES]
    for directory in directories:
        directory.mkdir(parents=True)
    assert len(set(directories)) == len(NAMESPACES)
    assert {directory.resolve().relative_to(tmp_path.resolve()).parts[0] for directory in directories} == {".kubernetes"}
    assert {len(directory.resolve().relative_to(tmp_path.resolve()).parts) for directory in directories} == {4}


@pytest.mark.parametrize(
    "context, namespace, expected",
    [
        (None, None, FAR),  # the last start of all
        ("kind", None, TEAM),
        (None, "team-a", TEAM),
        ("kind", "default", HERE),
        (None, "new", NamespaceRef(FAR.context, "new")),
        ("other", None, NamespaceRef("other", None)),
    ],
)
def test_a_run_is_in_the_namespace_of_its_last_start_unless_the_user_names_another(
    context: str | None, namespace: str | None, expected: NamespaceRef, tmp_path: Path
) -> None:
    for ref in (HERE, TEAM, FAR):
        cluster_state.record_start(tmp_path, ref, "mnist")
    assert cluster_state.last_started(tmp_path, "mnist", context, namespace) == expected
    assert cluster_state.last_started(tmp_path, "other", context, namespace) == NamespaceRef(context, namespace)


def test_a_forgotten_namespace_is_no_longer_that_of_the_run(tmp_path: Path) -> None:
    for ref in (HERE, TEAM):
        cluster_state.record_start(tmp_path, ref, "mnist")
    cluster_state.forget(tmp_path, TEAM, "mnist")
    assert cluster_state.last_started(tmp_path, "mnist", None, None) == HERE
    cluster_state.forget(tmp_path, HERE, "mnist")
    cluster_state.forget(tmp_path, HERE, "mnist")
    assert cluster_state.last_started(tmp_path, "mnist", None, None) == NamespaceRef(None, None)


def test_renaming_a_copy_moves_its_output_and_keeps_the_namespace_of_the_run(tmp_path: Path) -> None:
    for ref in (HERE, TEAM):
        cluster_state.record_start(tmp_path, ref, "mnist")
    log = cluster_state.logs(tmp_path, TEAM, "mnist") / "chief" / "mnist-chief-0-abcde.log"
    log.parent.mkdir(parents=True)
    log.write_text("2026-01-01T00:00:00Z first words\n")
    cluster_state.rename(tmp_path, TEAM, "mnist", "mnist.old")
    assert cluster_state.last_started(tmp_path, "mnist", None, None) == TEAM
    assert not cluster_state.logs(tmp_path, TEAM, "mnist").exists()
    moved = cluster_state.logs(tmp_path, TEAM, "mnist.old") / "chief" / log.name
    assert moved.read_text() == "2026-01-01T00:00:00Z first words\n"
    cluster_state.rename(tmp_path, HERE, "mnist", "mnist.older")  # of which there is no copy
    assert cluster_state.last_started(tmp_path, "mnist", None, None) == TEAM


def test_a_start_that_is_undone_restores_the_previous_namespace(tmp_path: Path) -> None:
    cluster_state.record_start(tmp_path, HERE, "mnist")()
    assert cluster_state.last_started(tmp_path, "mnist", None, None) == NamespaceRef(None, None)
    cluster_state.record_start(tmp_path, HERE, "mnist")
    cluster_state.record_start(tmp_path, TEAM, "mnist")
    cluster_state.record_start(tmp_path, HERE, "mnist")()
    assert cluster_state.last_started(tmp_path, "mnist", None, None) == TEAM
    assert cluster_state.last_started(tmp_path, "mnist", None, "default") == HERE


def test_a_copy_in_the_old_layout_with_only_the_name_is_found(tmp_path: Path) -> None:
    old = tmp_path / ".kubernetes" / "mnist"
    names = ("chief/mnist-chief-0-abcde.log", "ps-0/mnist-ps-0-abcde.log")
    for name in names:
        (old / "logs" / name).parent.mkdir(parents=True)
        (old / "logs" / name).write_text("2026-01-01T00:00:00Z first words\n")
    (old / "place.json").write_text('{"context": "kind", "namespace": "team-a"}')
    assert cluster_state.last_started(tmp_path, "other", None, None) == NamespaceRef(None, None)
    for _ in range(2):
        assert cluster_state.last_started(tmp_path, "mnist", None, None) == dataclasses.replace(TEAM, is_explicit=False)
        assert [line.task for line in stored_lines(cluster_state.logs(tmp_path, TEAM, "mnist"), [])] == ["chief", "ps-0"]
    assert not old.exists()


def test_a_context_with_the_name_of_the_run_is_not_taken_for_the_old_layout(tmp_path: Path) -> None:
    ref = NamespaceRef("mnist", "logs", is_explicit=True)
    cluster_state.record_start(tmp_path, ref, "mnist")
    log = cluster_state.logs(tmp_path, ref, "mnist") / "chief" / "mnist-chief-0-abcde.log"
    log.parent.mkdir(parents=True)
    log.write_text("2026-01-01T00:00:00Z first words\n")
    earlier = tmp_path / ".kubernetes" / "mnist" / "place.json"
    earlier.write_text('{"context": "kind", "namespace": "team-a"}')
    os.utime(earlier, (0, 0))
    assert cluster_state.last_started(tmp_path, "mnist", None, None) == ref
    assert cluster_state.last_started(tmp_path, "mnist", "kind", None) == dataclasses.replace(TEAM, is_explicit=False)
    assert log.is_file()
