"""Copies that are kept of runs on clusters: the same name in several places is not mixed up."""

import dataclasses
import os
from pathlib import Path

import pytest

from launcher.backend.kubernetes.pod_logs import stored_lines
from launcher.runs import cluster_cache
from launcher.runs.cluster_cache import Place

HERE = Place("kind", "default")
TEAM = Place("kind", "team-a", is_explicit=True)
FAR = Place("arn:aws:eks:eu-west-1:4711:cluster/far", "default")
PLACES = (HERE, TEAM, FAR, Place("../kind", "default"), Place(".", "default"), Place(None, "default"), Place("@", "default"))


def test_each_place_has_a_directory_of_its_own_below_the_runs(tmp_path: Path) -> None:
    directories = [cluster_cache.directory(tmp_path, place, "mnist") for place in PLACES]
    for directory in directories:
        directory.mkdir(parents=True)
    assert len(set(directories)) == len(PLACES)
    assert {directory.resolve().relative_to(tmp_path.resolve()).parts[0] for directory in directories} == {".kubernetes"}
    assert {len(directory.resolve().relative_to(tmp_path.resolve()).parts) for directory in directories} == {4}


@pytest.mark.parametrize(
    "context, namespace, found",
    [
        (None, None, FAR),  # the last of all
        ("kind", None, TEAM),
        (None, "team-a", TEAM),
        ("kind", "default", HERE),
        (None, "new", Place(FAR.context, "new")),
        ("other", None, Place("other", None)),
    ],
)
def test_a_run_is_where_it_was_started_last_unless_the_user_says_otherwise(
    context: str | None, namespace: str | None, found: Place, tmp_path: Path
) -> None:
    for place in (HERE, TEAM, FAR):
        cluster_cache.remember(tmp_path, place, "mnist")
    assert cluster_cache.last(tmp_path, "mnist", context, namespace) == found
    assert cluster_cache.last(tmp_path, "other", context, namespace) == Place(context, namespace)


def test_what_is_forgotten_is_no_place_of_the_run_any_more(tmp_path: Path) -> None:
    for place in (HERE, TEAM):
        cluster_cache.remember(tmp_path, place, "mnist")
    cluster_cache.forget(tmp_path, TEAM, "mnist")
    assert cluster_cache.last(tmp_path, "mnist", None, None) == HERE
    cluster_cache.forget(tmp_path, HERE, "mnist")
    cluster_cache.forget(tmp_path, HERE, "mnist")
    assert cluster_cache.last(tmp_path, "mnist", None, None) == Place(None, None)


def test_what_is_set_aside_takes_its_output_along_and_leaves_the_run_where_it_was(tmp_path: Path) -> None:
    for place in (HERE, TEAM):
        cluster_cache.remember(tmp_path, place, "mnist")
    log = cluster_cache.logs(tmp_path, TEAM, "mnist") / "chief" / "mnist-chief-0-abcde.log"
    log.parent.mkdir(parents=True)
    log.write_text("2026-01-01T00:00:00Z first words\n")
    cluster_cache.rename(tmp_path, TEAM, "mnist", "mnist.old")
    assert cluster_cache.last(tmp_path, "mnist", None, None) == TEAM
    assert not cluster_cache.logs(tmp_path, TEAM, "mnist").exists()
    moved = cluster_cache.logs(tmp_path, TEAM, "mnist.old") / "chief" / log.name
    assert moved.read_text() == "2026-01-01T00:00:00Z first words\n"
    cluster_cache.rename(tmp_path, HERE, "mnist", "mnist.older")  # of which nothing was kept
    assert cluster_cache.last(tmp_path, "mnist", None, None) == TEAM


def test_a_start_that_came_to_nothing_leaves_the_run_where_it_was_started_before(tmp_path: Path) -> None:
    cluster_cache.remember(tmp_path, HERE, "mnist")()
    assert cluster_cache.last(tmp_path, "mnist", None, None) == Place(None, None)
    cluster_cache.remember(tmp_path, HERE, "mnist")
    cluster_cache.remember(tmp_path, TEAM, "mnist")
    cluster_cache.remember(tmp_path, HERE, "mnist")()
    assert cluster_cache.last(tmp_path, "mnist", None, None) == TEAM
    assert cluster_cache.last(tmp_path, "mnist", None, "default") == HERE


def test_what_was_kept_when_the_name_alone_said_where_is_found(tmp_path: Path) -> None:
    old = tmp_path / ".kubernetes" / "mnist"
    names = ("chief/mnist-chief-0-abcde.log", "ps-0/mnist-ps-0-abcde.log")
    for name in names:
        (old / "logs" / name).parent.mkdir(parents=True)
        (old / "logs" / name).write_text("2026-01-01T00:00:00Z first words\n")
    (old / "place.json").write_text('{"context": "kind", "namespace": "team-a"}')
    assert cluster_cache.last(tmp_path, "other", None, None) == Place(None, None)
    for _ in range(2):
        assert cluster_cache.last(tmp_path, "mnist", None, None) == dataclasses.replace(TEAM, is_explicit=False)
        assert [line.task for line in stored_lines(cluster_cache.logs(tmp_path, TEAM, "mnist"), [], [])] == ["chief", "ps-0"]
    assert not old.exists()


def test_a_context_of_the_runs_name_is_not_taken_for_what_was_kept_then(tmp_path: Path) -> None:
    place = Place("mnist", "logs", is_explicit=True)
    cluster_cache.remember(tmp_path, place, "mnist")
    log = cluster_cache.logs(tmp_path, place, "mnist") / "chief" / "mnist-chief-0-abcde.log"
    log.parent.mkdir(parents=True)
    log.write_text("2026-01-01T00:00:00Z first words\n")
    earlier = tmp_path / ".kubernetes" / "mnist" / "place.json"
    earlier.write_text('{"context": "kind", "namespace": "team-a"}')
    os.utime(earlier, (0, 0))
    assert cluster_cache.last(tmp_path, "mnist", None, None) == place
    assert cluster_cache.last(tmp_path, "mnist", "kind", None) == dataclasses.replace(TEAM, is_explicit=False)
    assert log.is_file()
