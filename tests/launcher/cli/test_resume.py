"""A second `up` of the same name."""

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from launcher.backend.local.backend import LocalBackend
from launcher.backend.model import Backend
from launcher.cli.resume import (
    Change,
    ResumeFlags,
    changed,
    data_exists,
    decide_resume,
    describe_start,
    moved_spec_note,
    rename_old_run,
    start_lock,
)
from launcher.errors import UsageError
from launcher.plan import planner
from launcher.plan.models import Target
from launcher.runs import locks
from launcher.runs.status import DataLoss, Location, RunStatus, State, TaskStatus
from launcher.spec.loader import dump
from launcher.spec.models import ClusterSpec
from tests.golden_messages import Golden

RUNS = Path("runs")
NO_FLAGS = ResumeFlags(fresh=False, resume=False, may_prompt=False)
FRESH = ResumeFlags(fresh=True, resume=False, may_prompt=False)
RESUME = ResumeFlags(fresh=False, resume=True, may_prompt=False)
OTHER_RATE: list[Change] = [("train.params.learning_rate", 0.1, 0.2)]


def run(state: State) -> RunStatus:
    return RunStatus(name="mnist", backend="local", state=state)


@pytest.mark.parametrize(
    "state, changes, flags, decision",
    [
        (State.STOPPED, [], NO_FLAGS, "resume"),
        (State.FAILED, [], NO_FLAGS, "resume"),
        (State.INTERRUPTED, [], NO_FLAGS, "resume"),
        (State.SUCCEEDED, [], NO_FLAGS, "complete"),
        (State.SUCCEEDED, [("train.steps", 100, 200)], NO_FLAGS, "resume"),
        (State.SUCCEEDED, [("train.epochs", 3, 5)], NO_FLAGS, "resume"),
        (State.SUCCEEDED, [], FRESH, "fresh"),
        (State.STOPPED, OTHER_RATE, RESUME, "resume"),
        (State.STOPPED, OTHER_RATE, FRESH, "fresh"),
    ],
)
def test_clear_cases_are_decided_without_a_question(state: State, changes: list[Change], flags: ResumeFlags, decision: str) -> None:
    assert decide_resume(run(state), changes, flags, RUNS) == decision


LOST = {
    code: replace(run(State.STOPPED), data_lost=DataLoss(code, "the claim mnist was deleted"))
    for code in ("deleted", "deleting", "replaced")
}


@pytest.mark.parametrize("flags", [NO_FLAGS, RESUME])
@pytest.mark.parametrize("code", ["deleted", "deleting"])
@pytest.mark.parametrize("changes", [[], [("train.steps", 100, 200)], None])
def test_a_run_whose_data_is_lost_starts_again_only_with_fresh(code: str, changes: list[Change] | None, flags: ResumeFlags) -> None:
    with pytest.raises(UsageError, match="the claim mnist was deleted") as refused:
        decide_resume(LOST[code], changes, flags, RUNS)
    assert "--fresh" in refused.value.remedy
    assert "--resume" not in refused.value.remedy
    assert decide_resume(LOST[code], changes, FRESH, RUNS) == "fresh"


def test_a_run_continues_from_another_claim_only_with_resume() -> None:
    with pytest.raises(UsageError) as refused:
        decide_resume(LOST["replaced"], [], NO_FLAGS, RUNS)
    assert "--resume to continue from the data on that one" in refused.value.remedy
    assert decide_resume(LOST["replaced"], [], RESUME, RUNS) == "resume"
    assert decide_resume(replace(LOST["replaced"], state=State.SUCCEEDED), [], NO_FLAGS, RUNS) == "complete"


def test_a_name_without_a_run_is_started() -> None:
    assert decide_resume(None, None, NO_FLAGS, RUNS) == "start"


@pytest.mark.parametrize("old", [None, run(State.FAILED)])
def test_fresh_starts_again_even_if_little_is_known_of_the_old_run(old: RunStatus | None) -> None:
    assert decide_resume(old, None, FRESH, RUNS) == "fresh"


def test_a_run_without_a_known_spec_is_started_if_it_never_ran_and_else_needs_a_flag() -> None:
    refused_start = run(State.FAILED)
    assert decide_resume(refused_start, None, NO_FLAGS, RUNS) == "start"
    old = replace(refused_start, tasks=(TaskStatus("chief", State.FAILED, started=1.0),))
    assert decide_resume(replace(old, backend="kubernetes"), None, NO_FLAGS, RUNS) == "start"
    for unreadable in (old, run(State.UNKNOWN)):
        with pytest.raises(UsageError, match="cannot be read") as refused:
            decide_resume(unreadable, None, NO_FLAGS, RUNS)
        assert "--resume" in refused.value.remedy
        assert decide_resume(unreadable, None, RESUME, RUNS) == "resume"


@pytest.mark.parametrize(
    "state, digest, flags, decision",
    [
        (State.STOPPED, "abc", NO_FLAGS, "resume"),
        (State.SUCCEEDED, "abc", NO_FLAGS, "complete"),
        (State.STOPPED, "abc", FRESH, "fresh"),
        (State.STOPPED, "other", RESUME, "resume"),
    ],
)
def test_a_run_that_was_started_elsewhere_is_compared_by_its_spec_s_digest(
    state: State, digest: str, flags: ResumeFlags, decision: str
) -> None:
    old = replace(run(state), spec_digest=digest)
    assert decide_resume(old, None, flags, RUNS, digest="abc", elsewhere=True) == decision
    assert decide_resume(old, None, flags, RUNS, digest="abc-12345678", elsewhere=True) == decision  # it was started by an earlier version


@pytest.mark.parametrize(
    "state, digest, decision",
    [(State.SUCCEEDED, "abc-1", "complete"), (State.SUCCEEDED, "abc", "complete"), (State.FAILED, "abc-2", "resume")],
)
def test_a_failed_run_continues_with_changed_code_and_a_complete_one_is_complete_with_its_own(
    state: State, digest: str, decision: str
) -> None:
    assert decide_resume(replace(run(state), spec_digest=digest), [], NO_FLAGS, RUNS, digest="abc-1") == decision


def test_a_complete_run_of_other_code_needs_a_flag() -> None:
    old = replace(run(State.SUCCEEDED), spec_digest="abc-2")
    with pytest.raises(UsageError, match="mnist is complete, and its code has changed since") as caught:
        decide_resume(old, [], NO_FLAGS, RUNS, digest="abc-1")
    assert "--fresh" in caught.value.remedy
    assert decide_resume(old, [], RESUME, RUNS, digest="abc-1") == "resume"


@pytest.mark.parametrize("digest, message", [("other", "from another spec"), ("", "from an unknown spec")])
def test_a_run_of_another_spec_that_was_started_elsewhere_needs_a_flag(digest: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        decide_resume(replace(run(State.STOPPED), spec_digest=digest), None, NO_FLAGS, RUNS, digest="abc", elsewhere=True)
    assert "--resume" in caught.value.remedy


@pytest.mark.parametrize(
    "old, new, expected",
    [
        (("/a/src", "/a/data"), ("/b/src", "/b/data"), []),  # a copied project
        (("/a/c/src", "/a/data"), ("/b/src", "/data"), []),  # one with its data beside it
        (("/a/src", "/v1/data"), ("/b/src", "/v2/data"), ["train.data"]),
        (("/a/v1/src", "/a/data"), ("/b/v2/src", "/b/data"), ["code"]),
        (("/a/src", "/mnt/v1/train"), ("/b/src", "/mnt/v2/train"), ["train.data"]),
        (("/a/src", "/mnt/train"), ("/b/src", "/mnt/train"), []),
    ],
)
def test_another_data_set_or_code_is_a_change_of_a_run_on_a_cluster(
    old: tuple[str, str], new: tuple[str, str], expected: list[str], tmp_path: Path
) -> None:
    (tmp_path / "toy" / "launcher").mkdir(parents=True)
    # The plan of a local run of that name, which has no say in a run on a cluster.
    (tmp_path / "toy" / "launcher" / "plan.json").write_text(json.dumps({"spec_dir": str(tmp_path)}))

    def spec_of(code: str, data: str) -> ClusterSpec:
        volume = {"name": "data", "mount_path": "/mnt", "source": {"persistentVolumeClaim": {"claimName": "data"}}}
        train = {"workload": "mnist", "data": data, "steps": 1}
        return ClusterSpec.model_validate({"version": 1, "name": "toy", "code": code, "train": train, "kubernetes": {"volumes": [volume]}})

    plan = planner.plan(spec_of(*new), "kubernetes", run_dir="/runs/toy", spec_dir="/b")
    backend = cast("Backend", SimpleNamespace(spec=lambda _: dump(spec_of(*old))))
    assert [path for path, _, _ in changed(backend, spec_of(*new), plan, tmp_path) or ()] == expected
    assert moved_spec_note(tmp_path, plan) == ""


@pytest.mark.parametrize(
    "target, path, expected", [("docker", "/b/sets", []), ("docker", "/b/other", ["volumes"]), ("kubernetes", "/b/other", [])]
)
def test_a_volume_s_directory_is_compared_relative_to_the_spec_s(target: Target, path: str, expected: list[str], tmp_path: Path) -> None:
    directory = tmp_path / (".docker/toy" if target == "docker" else "toy") / "launcher"
    directory.mkdir(parents=True)
    (directory / "plan.json").write_text(json.dumps({"spec_dir": "/a"}))

    def spec_of(path: str) -> ClusterSpec:
        volume = {"name": "data", "mount_path": "/sets", "path": path, "source": {"persistentVolumeClaim": {"claimName": "data"}}}
        return ClusterSpec.model_validate({"version": 1, "name": "toy", "image": "mine:1", "command": ["a"], "volumes": [volume]})

    backend = cast("Backend", SimpleNamespace(spec=lambda _: dump(spec_of("/a/sets"))))
    plan = planner.plan(spec_of(path), target, run_dir="/runs/toy", spec_dir="/b")
    assert [field for field, _, _ in changed(backend, spec_of(path), plan, tmp_path) or ()] == expected


@pytest.mark.parametrize(
    "source, read_only, dumped, expected",
    [
        ({"persistentVolumeClaim": {"claimName": "sets"}}, None, True, []),
        ({"persistentVolumeClaim": {"claimName": "sets"}}, True, True, []),
        ({"persistentVolumeClaim": {"claimName": "sets"}}, False, True, ["kubernetes.volumes"]),
        ({"persistentVolumeClaim": {"claimName": "sets"}}, None, False, ["kubernetes.volumes"]),
        ({"emptyDir": {}}, None, True, []),  # the spec left it out, and the dump has true
        ({"emptyDir": {}}, False, False, []),
        ({"emptyDir": {}}, None, False, []),
    ],
)
def test_a_volume_without_read_only_is_compared_as_an_older_version_read_it(
    source: dict[str, Any], read_only: bool | None, dumped: bool, expected: list[str], tmp_path: Path
) -> None:
    volume = {"name": "sets", "mount_path": "/sets", "source": source} | ({} if read_only is None else {"read_only": read_only})
    document = {"version": 1, "name": "toy", "train": {"workload": "mnist_mlp"}, "kubernetes": {"volumes": [volume]}}
    spec = ClusterSpec.model_validate(document)
    # The dump of a version without `volumes` at the top and without `path`; true was the default.
    older: dict[str, Any] = {"name": "sets", "mount_path": "/sets", "source": source, "sub_path": None, "read_only": dumped, "roles": []}
    old = {key: value for key, value in dump(spec).items() if key != "volumes"}
    old["kubernetes"] = {**old["kubernetes"], "volumes": [older]}
    plan = planner.plan(spec, "kubernetes", run_dir="/runs/toy", spec_dir="/b")
    backend = cast("Backend", SimpleNamespace(spec=lambda _: old))
    assert [path for path, _, _ in changed(backend, spec, plan, tmp_path) or ()] == expected


def test_a_notice_names_the_step_from_which_a_run_resumes_if_it_is_known(tmp_path: Path, golden: Golden) -> None:
    old = replace(run(State.STOPPED), run_dir=Location("directory", str(tmp_path)))
    golden(describe_start(old, "/runs"))
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "ckpt-1500.index").touch()
    golden(describe_start(old, "/runs"))
    golden(describe_start(replace(old, checkpoint_step=1600), "/runs"))
    # The launcher cannot look into a volume, so it does not know whether it has a checkpoint.
    on_volume = replace(old, run_dir=Location("volume", "mnist_run"))
    assert describe_start(on_volume, "/runs").startswith("from its last checkpoint in volume mnist_run")
    golden(describe_start(on_volume, ""))
    golden(describe_start(replace(old, run_dir=None), ""))


def test_fields_that_a_newer_version_has_added_are_no_change(tmp_path: Path) -> None:
    spec = ClusterSpec.model_validate({"version": 1, "name": "toy", "image": "mine:1", "command": ["a"]})
    old = {**dump(spec), "storage": {"size": "10Gi", "class": None, "access": "ReadWriteMany"}}
    del old["success"], old["limits"]["worker_grace"]
    backend = cast("Backend", SimpleNamespace(spec=lambda _: old))
    changes = {}
    for target in ("local", "kubernetes"):
        plan = planner.plan(spec, target, run_dir="/runs/toy", spec_dir="/b")
        changes[target] = [path for path, _, _ in changed(backend, spec, plan, tmp_path) or ()]
    assert changes == {"local": [], "kubernetes": ["storage"]}


def test_the_access_mode_of_an_older_version_is_no_change(tmp_path: Path) -> None:
    """The claim keeps it, whatever a new claim would request."""
    spec = ClusterSpec.model_validate({"version": 1, "name": "toy", "train": {"workload": "mnist_mlp"}})
    old = {**dump(spec), "storage": {"size": "10Gi", "class": None, "access": "ReadWriteMany"}}
    plan = planner.plan(spec, "kubernetes", run_dir="/runs/toy", spec_dir="/b")

    def changes(old: dict[str, Any]) -> list[str]:
        return [path for path, _, _ in changed(cast("Backend", SimpleNamespace(spec=lambda _: old)), spec, plan, tmp_path) or ()]

    assert changes(old) == []
    assert changes({**old, "storage": {**old["storage"], "mount": "all"}}) == ["storage.mount"]


def test_existing_data_need_not_be_readable(tmp_path: Path) -> None:
    assert not data_exists(tmp_path, "mnist")
    (tmp_path / "mnist").mkdir()
    assert not data_exists(tmp_path, "mnist")
    (tmp_path / "mnist" / "mine").write_text("precious")
    assert data_exists(tmp_path, "mnist")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert data_exists(tmp_path, "link")


def test_only_one_up_of_a_name_runs_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.cli.resume._LOCK_TIMEOUT", 0.1)
    with start_lock(tmp_path / "runs", "mnist"):
        with start_lock(tmp_path / "runs", "other"):
            pass
        with pytest.raises(UsageError, match="another `launcher up` is starting mnist"), start_lock(tmp_path / "runs", "mnist"):
            pass
    assert list((tmp_path / "runs").iterdir()) == []
    with start_lock(tmp_path / "runs", "mnist"):
        pass


def test_a_lock_file_that_was_removed_during_the_wait_does_not_count_as_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = locks.acquire(path)
    assert first is not None
    path.unlink()
    with locks.exclusive(path, timeout=0.1) as mine:
        assert mine
        assert locks.acquire(path) is None
    os.close(first)


@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING, State.RESTARTING])
@pytest.mark.parametrize("fresh", [True, False])
def test_a_live_run_is_not_touched(state: State, fresh: bool) -> None:
    with pytest.raises(UsageError) as caught:
        decide_resume(run(state), [], ResumeFlags(fresh=fresh, resume=False, may_prompt=True), RUNS)
    assert "launcher logs -f mnist" in caught.value.remedy
    assert "launcher down mnist" in caught.value.remedy


@pytest.mark.parametrize("changes", [OTHER_RATE, [("train.steps", 200, 100)], [("train.steps", 100, 200), *OTHER_RATE]])
def test_a_changed_spec_is_shown_and_needs_a_flag(changes: list[Change], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError) as caught:
        decide_resume(run(State.STOPPED), changes, NO_FLAGS, RUNS)
    assert caught.value.exit_code == 2
    assert "--resume" in caught.value.remedy
    assert "--fresh" in caught.value.remedy
    table = capsys.readouterr().err
    for change in changes:
        for value in change:
            assert str(value) in table


def test_the_old_run_is_renamed_with_all_its_files(tmp_path: Path) -> None:
    (tmp_path / "mnist" / "checkpoints").mkdir(parents=True)
    (tmp_path / "mnist" / "checkpoints" / "mine").write_text("precious")
    backend = LocalBackend(tmp_path)
    (first,) = rename_old_run(backend, "mnist", None)
    assert not (tmp_path / "mnist").exists()
    assert Path(first.name, "checkpoints", "mine").read_text() == "precious"
    (tmp_path / "mnist").mkdir()
    assert rename_old_run(backend, "mnist", None) != (first,)


def test_a_run_that_was_started_elsewhere_continues_with_other_code_as_a_local_one_does() -> None:
    old = replace(run(State.STOPPED), spec_digest="abc-11111111")
    assert decide_resume(old, None, NO_FLAGS, RUNS, digest="abc-22222222", elsewhere=True) == "resume"
    with pytest.raises(UsageError, match="is complete, and its code has changed since"):
        decide_resume(replace(old, state=State.SUCCEEDED), None, NO_FLAGS, RUNS, digest="abc-22222222", elsewhere=True)
