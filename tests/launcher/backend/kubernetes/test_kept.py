"""What is kept of runs on clusters: the same name in several places is not mixed up."""

from pathlib import Path

import pytest

from launcher.backend.kubernetes import kept
from launcher.backend.kubernetes.kept import Place

HERE = Place("kind", "default")
TEAM = Place("kind", "team-a", said=True)
FAR = Place("arn:aws:eks:eu-west-1:4711:cluster/far", "default")
PLACES = (HERE, TEAM, FAR, Place("../kind", "default"), Place(".", "default"), Place(None, "default"), Place("@", "default"))


def test_each_place_has_a_directory_of_its_own_below_the_runs(tmp_path: Path) -> None:
    directories = [kept.directory(tmp_path, place, "mnist") for place in PLACES]
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
        kept.remember(tmp_path, place, "mnist")
    assert kept.last(tmp_path, "mnist", context, namespace) == found
    assert kept.last(tmp_path, "other", context, namespace) == Place(context, namespace)


def test_what_is_forgotten_or_moved_aside_is_no_place_of_the_run_any_more(tmp_path: Path) -> None:
    for place in (HERE, TEAM):
        kept.remember(tmp_path, place, "mnist")
    kept.rename(tmp_path, TEAM, "mnist", "mnist.old")
    assert kept.last(tmp_path, "mnist", None, None) == HERE
    assert kept.directory(tmp_path, TEAM, "mnist.old").is_dir()
    kept.forget(tmp_path, HERE, "mnist")
    kept.forget(tmp_path, HERE, "mnist")
    assert kept.last(tmp_path, "mnist", None, None) == Place(None, None)
