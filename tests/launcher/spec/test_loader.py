"""Files become specs: paths, digests, changes, and files that cannot be read."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from launcher.errors import Problem, SpecError
from launcher.spec import loader
from launcher.spec.loader import changes, digest, dump, load
from launcher.spec.models import ClusterSpec
from tests.golden_messages import Golden

MINIMAL = "version: 1\nname: run\ntrain: {workload: mnist_mlp}\n"


def write(directory: Path, text: str, name: str = "spec.yaml") -> Path:
    file = directory / name
    file.write_text(text, encoding="utf-8")
    return file


def only_problem(file: Path) -> Problem:
    with pytest.raises(SpecError) as caught:
        load(file)
    assert len(caught.value.problems) == 1
    return caught.value.problems[0]


def test_the_smallest_spec_has_a_chief(tmp_path: Path) -> None:
    spec = load(write(tmp_path, MINIMAL))
    assert spec.roles.chief is not None
    assert spec.roles.worker is None
    assert spec.strategy == "single"


def test_quantities_and_aliases_are_loaded(tmp_path: Path) -> None:
    spec = load(write(tmp_path, MINIMAL + "roles: {chief: {cpu: 500m, memory: 4Gi}}\nstorage: {class: nfs}\n"))
    assert spec.roles.chief is not None
    assert spec.roles.chief.cpu == 0.5
    assert spec.roles.chief.memory == "4Gi"
    assert spec.storage is not None
    assert spec.storage.class_ == "nfs"


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "specs" / "code" / "a").mkdir(parents=True)
    (tmp_path / "specs" / "code" / "a" / "b.py").write_text("class C: ...")
    (tmp_path / "data").mkdir()
    file = write(tmp_path / "specs", "version: 1\nname: run\ncode: ./code\ntrain: {workload: 'a.b:C', data: ../data}\n")
    monkeypatch.chdir(tmp_path)
    for path in (file, file.relative_to(tmp_path)):
        spec = load(path)
        assert spec.code == str(tmp_path / "specs" / "code")
        assert spec.train is not None
        assert spec.train.data == str(tmp_path / "data")


def test_a_tilde_is_the_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    spec = load(write(tmp_path, "version: 1\nname: run\ncommand: [python]\ncode: '~'\n"))
    assert spec.code == str(tmp_path)


@pytest.mark.parametrize("data", ["synthetic", "download", "gs://bucket/data"])
def test_data_that_is_no_directory_stays_unchanged(data: str, tmp_path: Path) -> None:
    spec = load(write(tmp_path, f"version: 1\nname: run\ntrain: {{workload: 'a.b:C', data: '{data}'}}\n"))
    assert spec.train is not None
    assert spec.train.data == data


def test_the_digest_depends_on_the_values_of_a_spec_and_not_on_their_spelling(tmp_path: Path) -> None:
    plain = digest(load(write(tmp_path, MINIMAL)))
    respelled = digest(
        load(
            write(
                tmp_path,
                '# the same\n"name": run\nversion: 1\ntrain:\n  steps: 2000\n  workload: mnist_mlp\n  params: {hidden_units: 100}\n',
            )
        )
    )
    changed = digest(load(write(tmp_path, MINIMAL), ["train.steps=2001"]))
    assert plain == respelled
    assert changed != plain
    assert len(plain) == 12


def test_a_dump_has_every_default_and_those_of_the_workload(tmp_path: Path) -> None:
    dumped = dump(load(write(tmp_path, MINIMAL)))
    assert dumped["train"]["steps"] == 2000
    assert dumped["train"]["params"] == {"hidden_units": 100, "learning_rate": 0.01}
    assert dumped["limits"]["start_timeout"] == "10m"


def test_a_dump_has_the_volume_that_a_run_has(tmp_path: Path) -> None:
    own = "version: 1\nname: run\nimage: mine:1\ncommand: [a]\n"
    assert dump(load(write(tmp_path, MINIMAL)))["storage"] == dump(load(write(tmp_path, own + "storage: {}\n")))["storage"]
    assert "storage" not in dump(load(write(tmp_path, own)))
    assert dump(load(write(tmp_path, own + "kubernetes: {claim: there}\n")))["storage"]["size"] == "10Gi"


def test_changes_are_listed_by_path_with_both_values(tmp_path: Path) -> None:
    file = write(tmp_path, MINIMAL)
    old, new = dump(load(file)), dump(load(file, ["train.steps=5", "train.params.hidden_units=7", "roles={chief: {}, evaluator: {}}"]))
    assert changes(old, old) == []
    assert [(path, was) for path, was, _ in changes(old, new)] == [
        ("roles.evaluator", None),
        ("train.steps", 2000),
        ("train.params.hidden_units", 100),
    ]
    assert changes({"a": 1}, {"b": 2}) == [("a", 1, None), ("b", None, 2)]


def test_a_required_field_that_is_missing_hides_no_other_problem() -> None:
    """It has a placeholder, with which the rules run; a list with an item that lacks one is left out as a whole."""
    schema = ClusterSpec.model_json_schema()
    sections = [section for name, section in schema["$defs"].items() if name not in {"Container", "Mount", "Volume"}]
    assert {field for section in (schema, *sections) for field in section.get("required", ())} == set(loader._PLACEHOLDERS)


def test_a_missing_file_is_named_with_its_neighbour(tmp_path: Path, golden: Golden) -> None:
    write(tmp_path, MINIMAL, "mnist.yaml")
    problem = only_problem(tmp_path / "mnits.yaml")
    golden(problem.message)
    assert problem.remedy == f"name {tmp_path / 'mnist.yaml'}"
    assert "launcher init" in only_problem(tmp_path / "quite-another.yaml").remedy
    golden(only_problem(tmp_path / "nowhere" / "spec.yaml").message)


def test_a_directory_is_no_spec(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL, "mnist.yaml")
    problem = only_problem(tmp_path)
    assert problem.message == "this is a directory"
    assert "mnist.yaml" in problem.remedy


@pytest.mark.usefixtures("without_dac_override")
def test_an_unreadable_file_is_reported(tmp_path: Path) -> None:
    file = write(tmp_path, MINIMAL)
    file.chmod(0)
    assert "Permission denied" in only_problem(file).message


def test_impossible_paths_are_reported(tmp_path: Path) -> None:
    assert "cannot be read" in only_problem(tmp_path / ("x" * 5000)).message
    assert "cannot be read" in only_problem(Path("a\0b")).message
    assert "cannot be read" in only_problem(write(tmp_path, MINIMAL) / "inside.yaml").message


def test_a_pipe_is_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writing = threading.Thread(target=pipe.write_text, args=(MINIMAL,), daemon=True)
    writing.start()
    assert load(pipe).name == "run"
    writing.join(60)


def test_loading_is_quick_and_imports_little(tmp_path: Path) -> None:
    file = write(tmp_path, MINIMAL)
    program = (
        "import sys\nfrom pathlib import Path\nfrom launcher.spec.loader import load\n"
        f"load(Path({str(file)!r}))\n"
        "print([name for name in ('tensorflow', 'keras', 'numpy', 'docker', 'kubernetes', 'rich', 'typer') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"
