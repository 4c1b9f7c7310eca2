"""The verb `import`: where the spec and the report go, and which files are never overwritten."""

import io
import json
from pathlib import Path

import pytest
import yaml

from launcher.cli.main import run

TFJOB = """\
apiVersion: kubeflow.org/v1
kind: TFJob
metadata: {name: NAME}
spec:
  cleanPodPolicy: None
  tfReplicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: OnFailure
      template: {spec: {containers: [{name: tensorflow, image: "registry.example/m:1", command: [python, train.py]}]}}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tfjob.yaml").write_text(TFJOB.replace("NAME", "mnist"))
    (tmp_path / "two.yaml").write_text(TFJOB.replace("NAME", "first") + "---\n" + TFJOB.replace("NAME", "second"))
    return tmp_path


def test_the_spec_goes_to_stdout_and_the_report_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", "tfjob.yaml"]) == 0
    output = capsys.readouterr()
    assert yaml.safe_load(output.out)["name"] == "mnist"
    assert output.err.startswith("imported: mnist, 2 tasks (2 workers), multi_worker_mirrored, from tfjob.yaml\n")
    assert "tfjob.yaml:5: spec.cleanPodPolicy: " in output.err
    for topic in ("restarts", "exit codes", "end", "TF_CONFIG"):
        assert f"\n  {topic}: " in output.err


def test_a_spec_that_is_written_to_a_file_is_valid(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", "tfjob.yaml", "-o", "cluster.yaml"]) == 0
    output = capsys.readouterr()
    assert output.out.startswith("wrote cluster.yaml: mnist, 2 tasks")
    assert output.err == ""
    assert run(["validate", "cluster.yaml"]) == 0


@pytest.mark.parametrize("digit", ["²", "٣"])
def test_only_ascii_digits_are_a_number_of_gpus(digit: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resources = f'[python, train.py], resources: {{limits: {{nvidia.com/gpu: "{digit}"}}}}'
    (here / "tfjob.yaml").write_text(TFJOB.replace("NAME", "mnist").replace("[python, train.py]", resources))
    assert run(["import", "tfjob.yaml"]) == 0
    assert f"nvidia.com/gpu: {digit}" in capsys.readouterr().out


def test_nothing_is_overwritten_without_force(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "cluster.yaml").write_text("mine")
    assert run(["import", "tfjob.yaml", "-o", "cluster.yaml"]) == 2
    assert "--force" in capsys.readouterr().err
    assert (here / "cluster.yaml").read_text() == "mine"
    assert run(["import", "two.yaml", "-o", "cluster.yaml", "--force"]) == 2  # a refused import writes nothing
    assert (here / "cluster.yaml").read_text() == "mine"
    assert run(["import", "tfjob.yaml", "-o", "cluster.yaml", "--force"]) == 0
    assert "name: mnist" in (here / "cluster.yaml").read_text()


def test_name_chooses_one_of_several_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", "two.yaml", "--name", "second"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["name"] == "second"
    assert run(["import", "two.yaml", "--name", "third"]) == 2
    assert "no TFJob called third in the file: first and second" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["first", "second"])
def test_a_name_may_come_from_a_merge_key(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    anchor = "x: &m {name: first}\n"
    first = TFJOB.replace("{name: NAME}", "{<<: *m, labels: {team: a}}").replace("\n", "\n  ").rstrip()
    second = TFJOB.replace("NAME", "second").replace("\n", "\n  ").rstrip()
    (here / "list.yaml").write_text(f"{anchor}kind: List\nitems:\n- {first}\n- {second}\n")
    assert run(["import", "list.yaml", "--name", name]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["name"] == name


def test_stdin_is_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TFJOB.replace("NAME", "piped").encode())))
    assert run(["import", "-"]) == 0
    output = capsys.readouterr()
    assert yaml.safe_load(output.out)["name"] == "piped"
    assert "stdin:5: spec.cleanPodPolicy" in output.err


def test_json_has_the_whole_report(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", "tfjob.yaml", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {"from", "name", "strategy", "tasks", "remarks", "differences", "others", "text"}
    assert report["tasks"] == {"worker": 2}
    assert [remark["path"] for remark in report["remarks"]] == ["spec.cleanPodPolicy"]
    assert run(["import", "tfjob.yaml", "--json", "-o", "cluster.yaml"]) == 0
    assert json.loads(capsys.readouterr().out)["file"] == "cluster.yaml"
    assert (here / "cluster.yaml").read_text() == report["text"]


def test_problems_are_json_with_json(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "tfjob.yaml").write_text(TFJOB.replace("replicas: 2", "replicas: ${N}"))
    assert run(["import", "tfjob.yaml", "--json"]) == 2
    [problem] = json.loads(capsys.readouterr().err)["problems"]
    assert (problem["line"], problem["path"]) == (8, "spec.tfReplicaSpecs.Worker.replicas")
    assert problem["expected"]
    assert problem["remedy"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nowhere.yaml"], "there is no such file"),
        (["."], "this is a directory"),
        (["tfjob.yaml", "-o", "."], ". is a directory"),
        (["tfjob.yaml", "-o", "no/such/x.yaml"], "mkdir -p no/such"),
        (["tfjob.yaml", "-o", "tfjob.yaml/x.yaml"], "tfjob.yaml is not a directory"),
    ],
)
def test_unusable_paths_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["PASSWORD", "my.password"])  # `env` cannot have the second, an override can
def test_only_the_owner_can_read_a_spec_with_variables(name: str, here: Path) -> None:
    (here / "tfjob.yaml").write_text(TFJOB.replace("command:", f"env: [{{name: {name}, value: hush}}], command:"))
    assert run(["import", "tfjob.yaml", "-o", "cluster.yaml"]) == 0
    assert (here / "cluster.yaml").stat().st_mode & 0o077 == 0
