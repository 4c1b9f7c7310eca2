"""The program as a whole: help, version, errors, completion, and what is imported for them."""

import errno
import importlib
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import launcher
from launcher.backend.registry import BackendEntry
from launcher.cli.errors import report
from launcher.cli.main import VERBS, load, run
from tests import forked
from tests.golden_messages import Golden
from tests.launcher.cli.conftest import LAUNCHER, ROOT

SPEC = "version: 1\nname: toy\nstrategy: single\ncommand: [python, -c, pass]\n"


@pytest.mark.parametrize("verb", VERBS)
def test_the_table_of_verbs_has_the_summary_of_each(verb: str) -> None:
    module = importlib.import_module(VERBS[verb].module)
    assert VERBS[verb].summary == getattr(module, VERBS[verb].function).__doc__.splitlines()[0]


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_each_verb_has_examples_that_parse(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([verb, "--help"]) == 0
    output = capsys.readouterr().out
    assert VERBS[verb].summary in output
    lines = [line.strip() for line in output.partition("Examples:")[2].splitlines() if line.startswith("    launcher ")]
    assert lines
    for line in lines:
        first = re.split(r" (?:\||&&|>) ", line)[0]
        program, name, *arguments = shlex.split(first)
        assert (program, name) == ("launcher", verb)
        load(verb).make_context(verb, arguments).close()


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_the_verbs(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 0
    output = capsys.readouterr().out
    assert all(f"\n  {verb} " in output for verb in VERBS)


def test_every_verb_and_option_is_in_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    documented = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for verb in VERBS:
        assert f"| `{verb}" in documented
        run([verb, "--help"])
        for word in capsys.readouterr().out.partition("Examples:")[0].split():
            if word.startswith("--") and word != "--help":
                assert word.strip(".,") in documented, f"{word} of {verb}"


def test_version_is_printed(environment: dict[str, str], tmp_path: Path) -> None:
    result = subprocess.run([*LAUNCHER, "--version"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=20, check=True)
    assert result.stdout == f"launcher {launcher.__version__}\n"


@pytest.mark.parametrize("arguments", [["upp"], ["up", "--bad"], ["validate"]], ids=["a verb", "an option", "an argument"])
def test_a_wrong_command_line_gives_an_error_of_two_lines(arguments: list[str], capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    assert run(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    golden(*output.err.splitlines())


def test_an_error_of_the_system_comes_with_a_remedy(capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    assert report(OSError(errno.ENOSPC, "No space left on device", "runs/x"), as_json=False) == 1
    golden(*capsys.readouterr().err.splitlines())


def test_errors_are_json_with_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "../etc", "--json"]) == 2
    failure = json.loads(capsys.readouterr().err)
    assert set(failure) == {"error", "remedy", "exit_code", "problems"}
    assert failure["exit_code"] == 2


@pytest.mark.parametrize("name", ["..", ".", "-x", "UPPER", "a.b", ""])
def test_a_name_that_could_be_another_path_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs").mkdir()
    assert run(["down", "--delete-data", "--yes", "--runs", str(tmp_path / "runs"), "--", name]) == 2
    assert "error: " in capsys.readouterr().err
    assert (tmp_path / "runs").is_dir()


@pytest.mark.parametrize(
    "arguments",
    [
        ["down", "", "--delete-data", "--yes"],
        ["down", "--finished", "--older", ""],
        ["down", "--finished", "--older="],
        ["image", "build", "--code", ""],
        ["ls", "--runs", ""],
        ["up", "toy.yaml", "--set", "env.TOKEN=s3cret", ""],
    ],
    ids=" ".join,
)
def test_an_empty_word_of_an_unset_shell_variable_is_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    assert run(arguments) == 2
    golden(*capsys.readouterr().err.splitlines())


def test_an_empty_pattern_is_allowed_as_each_line_matches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for pattern in (["--grep", ""], ["--grep="]):
        assert run(["logs", *pattern]) == 2
        assert "there are no runs" in capsys.readouterr().err


def test_an_unknown_backend_is_refused_with_the_names_of_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "toy.yaml").write_text(SPEC)
    for verb in ("up", "plan"):
        assert run([verb, str(tmp_path / "toy.yaml"), "--on", "slurm"]) == 2
        error = capsys.readouterr().err
        assert "'slurm'" in error
        assert "local" in error


@pytest.mark.parametrize("verb", ["up", "plan", "diff", "status", "down"])
def test_help_lists_the_backends(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([verb, "--help"]) == 0
    assert "--on local|docker|kubernetes" in capsys.readouterr().out


@pytest.mark.parametrize("below", ["toy.yaml", "toy.yaml/runs"])
def test_a_runs_directory_below_a_file_gives_an_error_that_names_the_file(
    below: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    (tmp_path / "toy.yaml").write_text(SPEC)
    for arguments in (["ls"], ["up", str(tmp_path / "toy.yaml")]):
        assert run([*arguments, "--runs", str(tmp_path / below)]) == 1
        golden(*capsys.readouterr().err.splitlines())


def test_an_unexpected_error_is_shown_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("launcher.cli.backends.BACKENDS", {"local": BackendEntry("launcher.no_such_module:Backend", "")})
    monkeypatch.delenv("LAUNCHER_DEBUG", raising=False)
    assert run(["ls", "--runs", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "no_such_module" in error
    assert "LAUNCHER_DEBUG=1" in error
    assert "Traceback" not in error
    monkeypatch.setenv("LAUNCHER_DEBUG", "1")
    assert run(["ls", "--runs", str(tmp_path)]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_reader_that_closes_the_pipe_is_no_error(environment: dict[str, str]) -> None:
    process = subprocess.Popen([*LAUNCHER, "schema"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=20)
    assert err == b""


def test_nothing_slow_is_imported_for_help_and_validate(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "toy.yaml").write_text(SPEC)
    command_lines = [["--help"], ["up", "--help"], ["validate", "toy.yaml", str(ROOT / "examples" / "mnist-ps.yaml")]]
    code = f"import sys; from launcher.cli.main import run; codes = [run(one) for one in {command_lines!r}]; print(*codes, *sys.modules, sep='\\n')"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=30, check=True
    )
    _, codes, modules = result.stdout.partition("\n0\n0\n0\n")
    assert codes, result.stdout
    imported = set(modules.split())
    assert {"launcher.cli.main", "launcher.spec.loader"} <= imported
    heavy = {"tensorflow", "keras", "numpy", "tensorboard", "docker", "kubernetes", "rich.live", "launcher.backend.local.backend"}
    assert imported & heavy == set()


def complete(line: str, cwd: Path, environment: dict[str, str]) -> list[str]:
    """Return what bash would offer for the last word."""
    variables = {"_LAUNCHER_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    return forked.launcher(cwd=cwd, env=environment | variables).stdout.split()


def test_the_shell_completes_verbs_options_runs_and_tasks(tmp_path: Path, environment: dict[str, str]) -> None:
    assert complete("launcher logs --since= --on ", tmp_path, environment) == ["local", "docker", "kubernetes"]
    (tmp_path / "cluster.yaml").write_text(SPEC)
    directory = tmp_path / "runs" / "mnist" / "launcher"
    directory.mkdir(parents=True)
    other = tmp_path / "runs" / "other" / "launcher"
    other.mkdir(parents=True)
    (other / "plan.json").write_text(json.dumps({"tasks": [{"name": "ps-0", "role": "ps", "index": 0}]}))
    (tmp_path / "runs" / "mnist.20260131" / "launcher").mkdir(parents=True)
    tasks = [{"name": "chief", "role": "chief", "index": 0}, {"name": "worker-0", "role": "worker", "index": 0}]
    tasks.append({"name": "worker-1", "role": "worker", "index": 1})
    (directory / "plan.json").write_text(json.dumps({"tasks": tasks}))

    assert complete("launcher st", tmp_path, environment) == ["status", "stacks"]
    assert complete("launcher logs --fo", tmp_path, environment) == ["--follow"]
    assert complete("launcher logs ", tmp_path, environment) == ["mnist", "other", "cluster.yaml"]
    assert complete("launcher logs mnist --role ", tmp_path, environment) == ["chief", "worker"]
    assert complete("launcher logs mnist --role worker --index ", tmp_path, environment) == ["0", "1"]
    assert complete("launcher init --strategy mul", tmp_path, environment) == ["multi_worker_mirrored"]
    assert complete("launcher plan cluster.yaml --task ", tmp_path, environment) == ["chief"]
    (tmp_path / "image.yaml").write_text("version: 1\nname: toy\nstrategy: single\nimage: busybox:1\n")  # its entrypoint runs
    assert complete("launcher plan image.yaml --task ", tmp_path, environment) == ["chief"]


def test_runs_without_tensorflow(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "toy.yaml").write_text(SPEC)
    command_lines = [["validate", "toy.yaml"], ["plan", "toy.yaml"], ["ls"], ["init", "new.yaml"]]
    code = (
        "import sys; sys.modules.update(tensorflow=None, keras=None, numpy=None); from launcher.cli.main import run; "
        f"sys.exit(str([run(one) for one in {command_lines!r}]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=30, check=False
    )
    assert result.stderr == "[0, 0, 0, 0]\n"
