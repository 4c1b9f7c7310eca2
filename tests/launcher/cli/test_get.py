"""`launcher get`: the files of a run are copied all or none, and never over existing ones."""

import contextlib
import io
import itertools
import json
import os
import signal
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.cli import main, unpacking
from launcher.errors import LauncherError, UsageError
from launcher.runs.artifacts import ArtifactStream
from tests.golden_messages import Golden
from tests.launcher.cli.conftest import Cli, Spec


def packed(*entries: tuple[str, bytes | str], links: bytes = tarfile.SYMTYPE) -> bytes:
    """Return a tar file of a directory `top`. An entry with a text is a link to that, of the type `links`."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        top = tarfile.TarInfo("top")
        top.type = tarfile.DIRTYPE
        tar.addfile(top)
        for name, content in entries:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = links, content
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def pieces(content: bytes, size: int = 700) -> Iterator[bytes]:
    yield from (content[start : start + size] for start in range(0, len(content), size))


def unpack(content: bytes, destination: Path, *, replace: bool = False) -> unpacking.Unpacked:
    return unpacking.unpack(pieces(content), destination, replace=replace, on_bytes=lambda _: None)


def test_no_entry_of_the_stream_is_written_outside_the_destination(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    content = packed(
        ("top/file", b"inside"),
        ("top/near", "file"),
        ("top/../../escaped", b"x"),
        ("/etc/escaped", b"x"),
        ("top/away", "/etc"),
        ("top/away/escaped", b"y"),
        ("top/up", "../.."),
    )
    result = unpack(content, tmp_path / "own" / "copy")
    assert set(result.left_out) >= {"../../escaped", "away", "up"}
    assert [path.name for path in tmp_path.iterdir()] == ["own"]
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["copy"]
    copy = tmp_path / "own" / "copy"
    assert (copy / "near").read_bytes() == b"inside"
    assert not (copy / "away").is_symlink()
    assert not Path("/etc/escaped").exists()


def test_hard_links_lead_only_to_files_of_the_stream(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("secret")
    content = packed(("top/file", b"inside"), ("top/same", "top/file"), ("top/away", "top/../../mine"), links=tarfile.LNKTYPE)
    assert unpack(content, tmp_path / "copy") == unpacking.Unpacked(2, 6, ("away",))
    assert (tmp_path / "copy" / "same").read_bytes() == b"inside"
    assert not (tmp_path / "copy" / "away").exists()


def test_a_link_that_leads_outside_by_a_later_entry_is_left_out(tmp_path: Path) -> None:
    content = packed(("top/file", b"inside"), ("top/away", "a/b/../../mine"), ("top/also", "away"), ("top/a/b", ".."), ("top/near", "a/b"))
    (tmp_path / "mine").write_text("secret")
    result = unpack(content, tmp_path / "copy")
    assert (result.files, sorted(result.left_out)) == (3, ["also", "away"])
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["a", "file", "near"]


def test_a_hard_link_to_a_link_is_left_out_if_it_leads_outside_from_its_own_directory(tmp_path: Path) -> None:
    file = io.BytesIO(packed(("top/mine", b"inside"), ("top/below/link", "../mine")))
    with tarfile.open(fileobj=file, mode="a") as tar:
        same = tarfile.TarInfo("top/same")
        same.type, same.linkname = tarfile.LNKTYPE, "top/below/link"
        tar.addfile(same)
    (tmp_path / "mine").write_text("secret")
    assert unpack(file.getvalue(), tmp_path / "copy").left_out == ("same",)
    assert (tmp_path / "copy" / "below" / "link").read_bytes() == b"inside"
    assert not (tmp_path / "copy" / "same").exists()


def test_links_in_a_circle_are_links(tmp_path: Path) -> None:
    result = unpack(packed(("top/a", "b"), ("top/b", "a"), ("top/c", "a"), ("top/file", b"x")), tmp_path / "copy")
    assert (result.files, result.left_out) == (4, ())


def test_unpacking_needs_nothing_that_older_versions_of_tarfile_lack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name in ((tarfile, "data_filter"), (tarfile, "FilterError"), (tarfile.TarInfo, "replace")):  # from 3.11.4 on
        monkeypatch.delattr(owner, name, raising=False)
    assert unpack(packed(("top/file", b"inside"), ("top/near", "file"), ("top/away", "/etc")), tmp_path / "copy").left_out == ("away",)


@pytest.mark.parametrize("length", [0, 600, 1500, 2048, 2100, 3584, 4000])  # headers, at 0, 512 and 2048, have 512 bytes, files 1,024
def test_a_stream_that_ends_early_leaves_nothing(length: int, tmp_path: Path) -> None:
    content = packed(("top/one", bytes(1000)), ("top/two", bytes(1000)))
    with pytest.raises(LauncherError, match="the tar file is incomplete"):
        unpack(content[:length], tmp_path / "copy")
    assert not list(tmp_path.iterdir())
    assert unpack(content, tmp_path / "copy").files == 2


def test_an_existing_directory_is_replaced_as_a_whole_and_only_with_replace(tmp_path: Path) -> None:
    target = tmp_path / "copy"
    target.mkdir()
    (target / "old").touch()
    with pytest.raises(UsageError, match="already exists") as refused:
        unpacking.check(target, tmp_path / "runs", replace=False)
    assert "--force" in refused.value.remedy
    unpacking.check(target, tmp_path / "runs", replace=True)
    unpack(packed(("top/new", b"x")), target, replace=True)
    assert [path.name for path in tmp_path.rglob("*")] == ["copy", "new"]


def test_a_directory_created_during_the_copy_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "copy"

    def chunks() -> Iterator[bytes]:
        yield from pieces(packed(("top/new", b"x")))
        target.mkdir()
        (target / "mine").touch()

    with pytest.raises(UsageError, match="already exists"):
        unpacking.unpack(chunks(), target, replace=False, on_bytes=lambda _: None)
    assert [path.name for path in tmp_path.rglob("*")] == ["copy", "mine"]


@pytest.mark.parametrize("call, renamed, remaining", [(1, False, "old"), (1, True, "old"), (2, False, "old"), (2, True, "new")])
def test_an_interrupt_at_a_rename_leaves_the_old_or_the_new(
    call: int, renamed: bool, remaining: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "old").touch()
    rename, calls = Path.rename, itertools.count(1)

    def interrupted(path: Path, target: Path) -> Path:
        interrupts = next(calls) == call
        if renamed or not interrupts:
            rename(path, target)
        if interrupts:
            raise KeyboardInterrupt
        return target

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        unpack(packed(("top/new", b"x")), tmp_path / "copy", replace=True)
    assert [path.name for path in tmp_path.rglob("*")] == ["copy", remaining]


@pytest.mark.parametrize(
    "destination, replace, message",
    [
        ("work", True, "holds the working directory"),
        ("runs", True, "is not replaced"),
        ("runs/mnist", True, "is not replaced"),
        ("", True, "holds the working directory"),
        ("none/copy", False, "there is no directory"),
    ],
)
def test_no_directory_that_is_needed_is_replaced(
    destination: str, replace: bool, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "mnist").mkdir(parents=True)
    (tmp_path / "work" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work" / "below")
    with pytest.raises(UsageError, match=message):
        unpacking.check(tmp_path / destination, tmp_path / "runs", replace=replace)


def test_a_runs_model_and_checkpoints_are_copied(cli: Cli, spec: Spec, tmp_path: Path) -> None:
    assert cli("up", spec("steps", "3", "0")).returncode == 0
    run = tmp_path / "runs" / "toy"
    missing = cli("get", "toy")
    assert missing.returncode == 2
    assert "toy has no model yet" in missing.stderr
    assert not (tmp_path / "toy-model").exists()

    (run / "export" / "best-3-x").mkdir(parents=True)
    (run / "export" / "best").symlink_to("best-3-x")
    (run / "export" / "best" / "model.keras").write_bytes(b"model")
    (run / "export" / "best" / "metrics.json").write_text(json.dumps({"step": 3, "metric": "accuracy", "value": 0.75}))
    (run / "checkpoints").mkdir(exist_ok=True)
    (run / "checkpoints" / "ckpt-3.index").touch()
    copied = cli("get", "toy")
    assert copied.returncode == 0, copied.stderr
    assert "the model of step 3, accuracy 0.75 is in toy-model, 2 files" in copied.stdout
    assert 'keras.models.load_model("toy-model/model.keras")' in copied.stdout
    assert not (tmp_path / "toy-model").is_symlink()
    assert (tmp_path / "toy-model" / "model.keras").read_bytes() == b"model"
    assert json.loads(cli("status", "toy", "--json").stdout)["model"] == str(run / "export" / "best")
    assert "runs/toy/export/best" in cli("status", "toy").stdout
    assert json.loads(cli("wait", "toy", "--json").stdout)["model"] == str(run / "export" / "best")

    again = cli("get", "toy")
    assert (again.returncode, "--force" in again.stderr) == (2, True)
    report = json.loads(cli("get", "toy", "checkpoints", "mine", "--json").stdout)
    assert (report["name"], report["what"], report["path"], report["files"], report["left_out"]) == (
        "toy",
        "checkpoints",
        str(tmp_path / "mine"),
        1,
        [],
    )
    missing = cli("get", "toy", "results", "--json")
    refused = json.loads(missing.stderr)
    assert (missing.returncode, refused["error"]) == (2, "toy has no results yet")
    assert refused["remedy"].startswith("it has checkpoints, model; ")
    wrong = cli("get", "toy", "weights")
    assert (wrong.returncode, "checkpoints" in wrong.stderr) == (2, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "runs", "toy-model", "toy.yaml"]


def test_data_of_which_nothing_can_be_copied_is_reported_with_its_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    @contextlib.contextmanager
    def fetch(*_: object) -> Iterator[ArtifactStream]:
        yield ArtifactStream("volume toy/results", pieces(packed(("top/large", "/scratch/large"), ("top/more", "../../more"))))

    monkeypatch.setattr("launcher.cli.backends.open_run", lambda *_: (SimpleNamespace(fetch=fetch), "toy"))
    monkeypatch.chdir(tmp_path)
    assert main.run(["get", "toy", "results"]) == 2
    golden(*capsys.readouterr().err.splitlines())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_the_copy_leaves_nothing_behind(number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    @contextlib.contextmanager
    def fetch(*_: object) -> Iterator[ArtifactStream]:
        def chunks() -> Iterator[bytes]:
            yield packed(("top/file", bytes(5000)))[:4000]
            os.kill(os.getpid(), number)

        try:
            yield ArtifactStream("here", chunks())
        finally:
            os.kill(os.getpid(), number)  # a second one, during the clean-up
            closed.append(number)

    monkeypatch.setattr("launcher.cli.backends.open_run", lambda *_: (SimpleNamespace(fetch=fetch), "toy"))
    monkeypatch.chdir(tmp_path)
    before = signal.signal(number, lambda *_: None)
    try:
        with pytest.raises(SystemExit) as ended:
            main.run(["get", "toy"])
    finally:
        signal.signal(number, before)
    assert (ended.value.code, closed) == (128 + number, [number])
    assert not list(tmp_path.iterdir())
