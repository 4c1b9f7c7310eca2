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
    exclusive,
    moved_spec_note,
    rename_old_run,
)
from launcher.errors import UsageError
from launcher.plan import planner
from launcher.plan.models import Target
from launcher.runs import locks
from launcher.runs.status import Location, Loss, RunStatus, State, TaskStatus
from launcher.spec.loader import dump
from launcher.spec.models import ClusterSpec
from tests.golden_messages import Golden

RUNS = Path("runs")
NOTHING_ASKED = ResumeFlags(fresh=False, resume=False, may_prompt=False)
OTHER_LOSS: list[Change] = [("train.params.learning_rate", 0.1, 0.2)]


def run(state: State) -> RunStatus:
    return RunStatus(name="mnist", backend="local", state=state)


@pytest.mark.parametrize(
    "state, changes, asked, decision",
    [
        (State.STOPPED, [], NOTHING_ASKED, "resume"),
        (State.FAILED, [], NOTHING_ASKED, "resume"),
        (State.INTERRUPTED, [], NOTHING_ASKED, "resume"),
        (State.SUCCEEDED, [], NOTHING_ASKED, "complete"),
        (State.SUCCEEDED, [("train.steps", 100, 200)], NOTHING_ASKED, "resume"),
        (State.SUCCEEDED, [("train.epochs", 3, 5)], NOTHING_ASKED, "resume"),
        (State.SUCCEEDED, [], ResumeFlags(fresh=True, resume=False, may_prompt=False), "fresh"),
        (State.STOPPED, OTHER_LOSS, ResumeFlags(fresh=False, resume=True, may_prompt=False), "resume"),
        (State.STOPPED, OTHER_LOSS, ResumeFlags(fresh=True, resume=False, may_prompt=False), "fresh"),
    ],
)
def test_what_is_clear_is_decided_without_asking(state: State, changes: list[Change], asked: ResumeFlags, decision: str) -> None:
    assert decide_resume(run(state), changes, asked, RUNS) == decision


LOST = {
    code: replace(run(State.STOPPED), data_lost=Loss(code, "the claim mnist was deleted")) for code in ("deleted", "deleting", "replaced")
}
RESUME = ResumeFlags(fresh=False, resume=True, may_prompt=False)


@pytest.mark.parametrize("asked", [NOTHING_ASKED, RESUME])
@pytest.mark.parametrize("code", ["deleted", "deleting"])
@pytest.mark.parametrize("changes", [[], [("train.steps", 100, 200)], None])
def test_a_run_whose_data_is_gone_starts_again_only_when_asked_to(code: str, changes: list[Change] | None, asked: ResumeFlags) -> None:
    with pytest.raises(UsageError, match="the claim mnist was deleted") as refused:
        decide_resume(LOST[code], changes, asked, RUNS)
    assert "--fresh" in refused.value.remedy
    assert "--resume" not in refused.value.remedy
    assert decide_resume(LOST[code], changes, ResumeFlags(fresh=True, resume=False, may_prompt=False), RUNS) == "fresh"


def test_a_run_goes_on_from_another_claim_only_when_asked_to() -> None:
    with pytest.raises(UsageError) as refused:
        decide_resume(LOST["replaced"], [], NOTHING_ASKED, RUNS)
    assert "--resume to continue from the data on that one" in refused.value.remedy
    assert decide_resume(LOST["replaced"], [], RESUME, RUNS) == "resume"
    assert decide_resume(replace(LOST["replaced"], state=State.SUCCEEDED), [], NOTHING_ASKED, RUNS) == "complete"


def test_nothing_there_is_started() -> None:
    assert decide_resume(None, None, NOTHING_ASKED, RUNS) == "start"


@pytest.mark.parametrize("old", [None, run(State.FAILED)])
def test_fresh_is_fresh_also_when_little_is_known_of_the_old_run(old: RunStatus | None) -> None:
    assert decide_resume(old, None, ResumeFlags(fresh=True, resume=False, may_prompt=False), RUNS) == "fresh"


def test_a_run_whose_spec_is_not_known_was_never_started_or_its_spec_cannot_be_read() -> None:
    refused_start = run(State.FAILED)
    assert decide_resume(refused_start, None, NOTHING_ASKED, RUNS) == "start"
    old = replace(refused_start, tasks=(TaskStatus("chief", State.FAILED, started=1.0),))
    assert decide_resume(replace(old, backend="kubernetes"), None, NOTHING_ASKED, RUNS) == "start"
    for unreadable in (old, run(State.UNKNOWN)):
        with pytest.raises(UsageError, match="cannot be read") as refused:
            decide_resume(unreadable, None, NOTHING_ASKED, RUNS)
        assert "--resume" in refused.value.remedy
        assert decide_resume(unreadable, None, ResumeFlags(fresh=False, resume=True, may_prompt=False), RUNS) == "resume"


@pytest.mark.parametrize(
    "state, digest, asked, decision",
    [
        (State.STOPPED, "abc", NOTHING_ASKED, "resume"),
        (State.SUCCEEDED, "abc", NOTHING_ASKED, "complete"),
        (State.STOPPED, "abc", ResumeFlags(fresh=True, resume=False, may_prompt=False), "fresh"),
        (State.STOPPED, "other", ResumeFlags(fresh=False, resume=True, may_prompt=False), "resume"),
    ],
)
def test_a_run_that_was_started_elsewhere_is_known_by_its_spec_s_digest(
    state: State, digest: str, asked: ResumeFlags, decision: str
) -> None:
    old = replace(run(state), spec_digest=digest)
    assert decide_resume(old, None, asked, RUNS, digest="abc", other_host=True) == decision
    assert decide_resume(old, None, asked, RUNS, digest="abc-12345678", other_host=True) == decision  # it was started by an earlier version


@pytest.mark.parametrize(
    "state, digest, decision",
    [(State.SUCCEEDED, "abc-1", "complete"), (State.SUCCEEDED, "abc", "complete"), (State.FAILED, "abc-2", "resume")],
)
def test_a_run_whose_code_is_mended_goes_on_and_one_that_is_complete_is_so_with_its_code(state: State, digest: str, decision: str) -> None:
    assert decide_resume(replace(run(state), spec_digest=digest), [], NOTHING_ASKED, RUNS, digest="abc-1") == decision


def test_a_complete_run_of_other_code_is_asked_about() -> None:
    old = replace(run(State.SUCCEEDED), spec_digest="abc-2")
    with pytest.raises(UsageError, match="mnist is complete, and its code has changed since") as caught:
        decide_resume(old, [], NOTHING_ASKED, RUNS, digest="abc-1")
    assert "--fresh" in caught.value.remedy
    assert decide_resume(old, [], ResumeFlags(fresh=False, resume=True, may_prompt=False), RUNS, digest="abc-1") == "resume"


@pytest.mark.parametrize("digest, words", [("other", "from another spec"), ("", "from an unknown spec")])
def test_a_run_of_another_spec_that_was_started_elsewhere_is_asked_about(digest: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        decide_resume(replace(run(State.STOPPED), spec_digest=digest), None, NOTHING_ASKED, RUNS, digest="abc", other_host=True)
    assert "--resume" in caught.value.remedy


@pytest.mark.parametrize(
    "old, new, found",
    [
        (("/a/src", "/a/data"), ("/b/src", "/b/data"), []),  # a copied project
        (("/a/c/src", "/a/data"), ("/b/src", "/data"), []),  # one with its data beside it
        (("/a/src", "/v1/data"), ("/b/src", "/v2/data"), ["train.data"]),
        (("/a/v1/src", "/a/data"), ("/b/v2/src", "/b/data"), ["code"]),
        (("/a/src", "/mnt/v1/train"), ("/b/src", "/mnt/v2/train"), ["train.data"]),
        (("/a/src", "/mnt/train"), ("/b/src", "/mnt/train"), []),
    ],
)
def test_of_a_run_on_a_cluster_another_data_set_or_code_is_a_change(
    old: tuple[str, str], new: tuple[str, str], found: list[str], tmp_path: Path
) -> None:
    (tmp_path / "toy" / "launcher").mkdir(parents=True)
    # The notes of a run of processes are not of the cluster's.
    (tmp_path / "toy" / "launcher" / "plan.json").write_text(json.dumps({"spec_dir": str(tmp_path)}))

    def made(code: str, data: str) -> ClusterSpec:
        volume = {"name": "data", "mount_path": "/mnt", "source": {"persistentVolumeClaim": {"claimName": "data"}}}
        train = {"workload": "mnist", "data": data, "steps": 1}
        return ClusterSpec.model_validate({"version": 1, "name": "toy", "code": code, "train": train, "kubernetes": {"volumes": [volume]}})

    plan = planner.plan(made(*new), "kubernetes", run_dir="/runs/toy", spec_dir="/b")
    backend = cast("Backend", SimpleNamespace(spec=lambda _: dump(made(*old))))
    assert [path for path, _, _ in changed(backend, made(*new), plan, tmp_path) or ()] == found
    assert moved_spec_note(tmp_path, plan) == ""


@pytest.mark.parametrize(
    "target, path, found", [("docker", "/b/sets", []), ("docker", "/b/other", ["volumes"]), ("kubernetes", "/b/other", [])]
)
def test_a_volume_s_directory_is_compared_as_from_the_spec_s(target: Target, path: str, found: list[str], tmp_path: Path) -> None:
    directory = tmp_path / (".docker/toy" if target == "docker" else "toy") / "launcher"
    directory.mkdir(parents=True)
    (directory / "plan.json").write_text(json.dumps({"spec_dir": "/a"}))

    def made(path: str) -> ClusterSpec:
        volume = {"name": "data", "mount_path": "/sets", "path": path, "source": {"persistentVolumeClaim": {"claimName": "data"}}}
        return ClusterSpec.model_validate({"version": 1, "name": "toy", "image": "mine:1", "command": ["a"], "volumes": [volume]})

    backend = cast("Backend", SimpleNamespace(spec=lambda _: dump(made("/a/sets"))))
    plan = planner.plan(made(path), target, run_dir="/runs/toy", spec_dir="/b")
    assert [what for what, _, _ in changed(backend, made(path), plan, tmp_path) or ()] == found


@pytest.mark.parametrize(
    "source, said, was, found",
    [
        ({"persistentVolumeClaim": {"claimName": "sets"}}, None, True, []),
        ({"persistentVolumeClaim": {"claimName": "sets"}}, True, True, []),
        ({"persistentVolumeClaim": {"claimName": "sets"}}, False, True, ["kubernetes.volumes"]),
        ({"persistentVolumeClaim": {"claimName": "sets"}}, None, False, ["kubernetes.volumes"]),
        ({"emptyDir": {}}, None, True, []),  # the spec said nothing, and the dump that it can only be read
        ({"emptyDir": {}}, False, False, []),
        ({"emptyDir": {}}, None, False, []),
    ],
)
def test_a_volume_that_leaves_out_read_only_is_what_an_older_version_took_it_for(
    source: dict[str, Any], said: bool | None, was: bool, found: list[str], tmp_path: Path
) -> None:
    volume = {"name": "sets", "mount_path": "/sets", "source": source} | ({} if said is None else {"read_only": said})
    form = {"version": 1, "name": "toy", "train": {"workload": "mnist_mlp"}, "kubernetes": {"volumes": [volume]}}
    spec = ClusterSpec.model_validate(form)
    # As versions without `volumes` at the top, and without `path`, dumped one: true was the default.
    older: dict[str, Any] = {"name": "sets", "mount_path": "/sets", "source": source, "sub_path": None, "read_only": was, "roles": []}
    old = {key: value for key, value in dump(spec).items() if key != "volumes"}
    old["kubernetes"] = {**old["kubernetes"], "volumes": [older]}
    made = planner.plan(spec, "kubernetes", run_dir="/runs/toy", spec_dir="/b")
    backend = cast("Backend", SimpleNamespace(spec=lambda _: old))
    assert [path for path, _, _ in changed(backend, spec, made, tmp_path) or ()] == found


def test_from_where_a_run_goes_on_is_said_as_far_as_it_is_known(tmp_path: Path, golden: Golden) -> None:
    old = replace(run(State.STOPPED), run_dir=Location("directory", str(tmp_path)))
    golden(describe_start(old, "/runs"))
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "ckpt-1500.index").touch()
    golden(describe_start(old, "/runs"))
    golden(describe_start(replace(old, checkpoint_step=1600), "/runs"))
    # A volume cannot be looked into from here: that there is no checkpoint is not known.
    on_volume = replace(old, run_dir=Location("volume", "mnist_run"))
    assert describe_start(on_volume, "/runs").startswith("from its last checkpoint in volume mnist_run")
    golden(describe_start(on_volume, ""))
    golden(describe_start(replace(old, run_dir=None), ""))


def test_what_a_newer_version_has_added_is_no_change(tmp_path: Path) -> None:
    spec = ClusterSpec.model_validate({"version": 1, "name": "toy", "image": "mine:1", "command": ["a"]})
    old = {**dump(spec), "storage": {"size": "10Gi", "class": None, "access": "ReadWriteMany"}}
    del old["success"], old["limits"]["worker_grace"]
    backend = cast("Backend", SimpleNamespace(spec=lambda _: old))
    found = {}
    for target in ("local", "kubernetes"):
        made = planner.plan(spec, target, run_dir="/runs/toy", spec_dir="/b")
        found[target] = [path for path, _, _ in changed(backend, spec, made, tmp_path) or ()]
    assert found == {"local": [], "kubernetes": ["storage"]}


def test_the_access_mode_of_an_older_version_is_no_change(tmp_path: Path) -> None:
    """The claim keeps it, whatever a new one would ask for."""
    spec = ClusterSpec.model_validate({"version": 1, "name": "toy", "train": {"workload": "mnist_mlp"}})
    old = {**dump(spec), "storage": {"size": "10Gi", "class": None, "access": "ReadWriteMany"}}
    made = planner.plan(spec, "kubernetes", run_dir="/runs/toy", spec_dir="/b")

    def changes(old: dict[str, Any]) -> list[str]:
        return [path for path, _, _ in changed(cast("Backend", SimpleNamespace(spec=lambda _: old)), spec, made, tmp_path) or ()]

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


def test_one_up_of_a_name_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.cli.resume._LOCK_TIMEOUT", 0.1)
    with exclusive(tmp_path / "runs", "mnist"):
        with exclusive(tmp_path / "runs", "other"):
            pass
        with pytest.raises(UsageError, match="another `launcher up` is starting mnist"), exclusive(tmp_path / "runs", "mnist"):
            pass
    assert list((tmp_path / "runs").iterdir()) == []
    with exclusive(tmp_path / "runs", "mnist"):
        pass


def test_a_lock_that_was_removed_while_one_waited_for_it_is_not_taken_for_the_lock(tmp_path: Path) -> None:
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
def test_what_runs_is_left_alone(state: State, fresh: bool) -> None:
    with pytest.raises(UsageError) as caught:
        decide_resume(run(state), [], ResumeFlags(fresh=fresh, resume=False, may_prompt=True), RUNS)
    assert "launcher logs -f mnist" in caught.value.remedy
    assert "launcher down mnist" in caught.value.remedy


@pytest.mark.parametrize("changes", [OTHER_LOSS, [("train.steps", 200, 100)], [("train.steps", 100, 200), *OTHER_LOSS]])
def test_a_changed_spec_is_shown_and_asked_about(changes: list[Change], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError) as caught:
        decide_resume(run(State.STOPPED), changes, NOTHING_ASKED, RUNS)
    assert caught.value.exit_code == 2
    assert "--resume" in caught.value.remedy
    assert "--fresh" in caught.value.remedy
    table = capsys.readouterr().err
    for path, old, new in changes:
        assert f"{path}" in table
        assert f"{old}" in table
        assert f"{new}" in table


def test_the_old_run_is_renamed_whole(tmp_path: Path) -> None:
    (tmp_path / "mnist" / "checkpoints").mkdir(parents=True)
    (tmp_path / "mnist" / "checkpoints" / "mine").write_text("precious")
    backend = LocalBackend(tmp_path)
    (first,) = rename_old_run(backend, "mnist", None)
    assert not (tmp_path / "mnist").exists()
    assert Path(first.name, "checkpoints", "mine").read_text() == "precious"
    (tmp_path / "mnist").mkdir()
    assert rename_old_run(backend, "mnist", None) != (first,)


def test_a_run_that_was_started_elsewhere_goes_on_with_other_code_as_one_from_here_does() -> None:
    old = replace(run(State.STOPPED), spec_digest="abc-11111111")
    assert decide_resume(old, None, NOTHING_ASKED, RUNS, digest="abc-22222222", other_host=True) == "resume"
    with pytest.raises(UsageError, match="is complete, and its code has changed since"):
        decide_resume(replace(old, state=State.SUCCEEDED), None, NOTHING_ASKED, RUNS, digest="abc-22222222", other_host=True)
