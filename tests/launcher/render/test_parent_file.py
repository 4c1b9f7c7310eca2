"""The parent of a program as one file, run by an isolated Python: by this one, and by the oldest that is supported."""

import ast
import functools
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import trainer
from launcher.plan import role_rules
from launcher.render import parent_file
from tests.processes import is_alive
from tests.waiting import until

CHIEF = {"cluster": {"chief": ["127.0.0.1:2222"]}, "task": {"type": "chief", "index": 0}}
TIMEOUT = 60.0  # seconds for a command that takes a tenth of one

# Names that came with Python 3.9 or later, which a check of the syntax does not find.
NEWER_NAMES = {
    *("removeprefix", "removesuffix", "waitstatus_to_exitcode", "cache", "pidfd_open", "is_relative_to", "with_stem", "readlink", "bit_count"),
    *("hardlink_to", "pairwise", "batched", "unparse", "randbytes", "to_thread", "StrEnum", "EnumType", "TypeAlias", "ParamSpec"),
    *("stdlib_module_names", "orig_argv", "eventfd"),
}  # fmt: skip
NEWER_KEYWORDS = {"strict", "slots", "kw_only", "match_args", "process_group", "umask", "root_dir", "delete_on_close"}


@functools.cache
def find_python_3_8() -> str | None:
    """Return the path of a Python 3.8, or None if there is none."""
    paths = [path for path in (shutil.which("python3.8"), *glob.glob(str(Path.home() / ".pyenv/versions/3.8*/bin/python"))) if path]  # noqa: PTH207
    uv = Path(sys.executable).with_name("uv")
    if uv.exists():
        paths += subprocess.run([uv, "python", "find", "3.8"], capture_output=True, text=True, check=False, timeout=TIMEOUT).stdout.split()
    for path in paths:
        command = [path, "-c", "import sys; print(sys.version_info[:2], sys.executable)"]
        output = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT).stdout
        if output.startswith("(3, 8) "):
            return output.split()[-1]
    return None


@pytest.fixture(scope="module", params=["this Python", "Python 3.8"])
def python(request: pytest.FixtureRequest) -> str:
    path = sys.executable if request.param == "this Python" else find_python_3_8()
    if path is None:
        pytest.skip("there is no Python 3.8 here: not on PATH, not of pyenv, not of uv")
    return path


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(python: str, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts the file in an empty directory, with nothing but the standard library."""
    file = tmp_path / "parent.py"
    file.write_text(parent_file.text(), encoding="utf-8")
    empty = tmp_path / "empty"
    empty.mkdir()
    running: list[subprocess.Popen[str]] = []

    def begin(*arguments: str, program: tuple[str, ...] = (str(file),), **env: Any) -> subprocess.Popen[str]:
        variables = {name: value if isinstance(value, str) else json.dumps(value) for name, value in env.items()}
        running.append(
            subprocess.Popen(
                [python, "-I", "-S", *program, *arguments],
                cwd=empty,
                env={"PATH": os.environ["PATH"], **variables},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.communicate(timeout=TIMEOUT)
    assert list(empty.iterdir()) == []


def finish(process: "subprocess.Popen[str]") -> tuple[int, list[str], str]:
    """Wait for the end; return exit code, lines of stdout, and stderr."""
    out, err = process.communicate(timeout=TIMEOUT)
    return process.returncode, out.splitlines(), err


def events(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines if line.startswith('{"event":')]


def test_a_program_runs_to_its_end_with_the_variables_that_its_parent_adds(start: Start) -> None:
    script = 'echo "$GRPC_FAIL_FAST $1 $TRAINER_PARENT."; exit 0'
    code, lines, err = finish(start("--", "sh", "-c", script, "sh", "--check", TF_CONFIG=CHIEF))
    assert (code, err) == (0, "")
    assert "use_caller --check ." in lines
    assert [event["event"] for event in events(lines)] == ["started"]


def test_the_text_may_be_in_a_variable_which_the_program_does_not_get(start: Start) -> None:
    program = role_rules.PARENT_IN_VARIABLE[role_rules.PARENT_IN_VARIABLE.index("-c") :]
    packed = {parent_file.VARIABLE: parent_file.packed()}
    code, lines, err = finish(start("--", "sh", "-c", 'echo "$TRAINER_PARENT."', program=program, TF_CONFIG=CHIEF, **packed))
    assert (code, err) == (0, "")
    assert "." in lines
    assert len(parent_file.VARIABLE) + len(parent_file.packed()) < 100 * 1024  # Linux takes 128 KiB


def test_a_program_that_is_killed_is_started_again(start: Start) -> None:
    code, lines, _ = finish(start("--", "sh", "-c", "[ $TRAINER_ATTEMPT = 2 ] || kill -9 $$", TF_CONFIG=CHIEF))
    assert code == 0
    assert [event["event"] for event in events(lines)] == ["started", "restarting", "started"]


def test_the_settings_limit_the_restarts(start: Start) -> None:
    settings = {"run": "a", "run_dir": "/runs/a", "scratch_dir": "/tmp/a", "max_restarts": 0}
    code, lines, _ = finish(start("--", "sh", "-c", "exit 7", TF_CONFIG=CHIEF, TRAINER_SETTINGS=settings))
    assert code == 7
    assert "the limit of 0 restarts is reached" in events(lines)[-1]["cause"]


def test_every_problem_of_tf_config_and_settings_is_reported_at_once(start: Start) -> None:
    wrong = {"cluster": {"worker": ["a"]}, "task": {"type": "master", "index": 0}}
    code, lines, err = finish(start("--", "true", TF_CONFIG=wrong, TRAINER_SETTINGS={"run": "a", "run_dir": 1, "scratch_dir": "/tmp/a"}))
    assert code == 2
    for part in (
        "TF_CONFIG.cluster.worker[0]: 'a' is not host:port",
        "TF_CONFIG.task.type: unknown task type",
        "TRAINER_SETTINGS.run_dir is 1",
    ):
        assert f"trainer: {part}" in err
    assert (events(lines)[0]["event"], events(lines)[0]["exit_code"]) == ("failed", 2)


def test_a_missing_program_is_reported(start: Start) -> None:
    code, _, err = finish(start(TRAINER_SETTINGS={}))
    assert code == 2
    assert "no program follows --" in err


def test_output_that_looks_like_an_event_is_escaped(start: Start) -> None:
    code, lines, _ = finish(start("--", "sh", "-c", """printf '3/10 ['; echo; echo '{"event":"done"}'""", TF_CONFIG=CHIEF))
    assert code == 0
    assert ' {"event":"done"}' in lines
    assert [event["event"] for event in events(lines)] == ["started"]


def test_it_is_healthy_while_its_program_runs_and_forwards_the_signal_to_stop(start: Start) -> None:
    process = start("--", "sh", "-c", "trap 'echo saved; exit 143' TERM; echo here; while :; do sleep 0.1; done", TF_CONFIG=CHIEF)
    assert process.stdout is not None
    assert any(line == "here\n" for line in iter(process.stdout.readline, ""))
    health = finish(start("--health", TF_CONFIG=CHIEF))
    assert (health[0], "chief: process" in health[1][0]) == (0, True), health
    process.send_signal(signal.SIGTERM)
    code, lines, _ = finish(process)
    assert code == 143
    assert "saved" in lines
    assert "stopping" in [event["event"] for event in events(lines)]


def test_no_program_outlives_it(start: Start, tmp_path: Path) -> None:
    process = start("--", "sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 3600", TF_CONFIG=CHIEF)
    file = tmp_path / "pid"
    until("the program", lambda: file.exists() and file.read_text().endswith("\n"), TIMEOUT, seen=process.poll)
    process.kill()
    pid = int(file.read_text())
    until("the end of the program", lambda: not is_alive(pid), TIMEOUT, seen=process.poll)


def test_every_module_in_it_can_be_imported(python: str, tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(parent_file.text(), encoding="utf-8")
    program = (
        "import importlib, sys\nsys.argv = ['parent.py', '--version']\n"
        "try:\n    exec(compile(open('parent.py').read(), 'parent.py', 'exec'))\nexcept SystemExit:\n    pass\n"
        "print(*sorted(importlib.import_module(name).__name__ for name in SOURCES))"
    )
    result = subprocess.run([python, "-I", "-S", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=TIMEOUT)
    assert tuple(result.stdout.splitlines()[-1].split()) == parent_file.modules()


def test_a_traceback_has_the_line_numbers_of_the_file() -> None:
    lines = parent_file.text().splitlines()
    first = next(number for number, line in enumerate(lines, 1) if line.startswith("SOURCES['trainer.process_group']"))
    assert f"({first}, r'''" in lines[first - 1]


def test_removing_comments_changes_no_code() -> None:
    assigned = [node for node in ast.parse(parent_file.text()).body if isinstance(node, ast.Assign)]
    sources = {
        ast.literal_eval(node.targets[0].slice): ast.literal_eval(node.value)
        for node in assigned
        if isinstance(node.targets[0], ast.Subscript)
    }
    assert set(sources) == set(parent_file.modules())
    for name, (_, source) in sources.items():
        file = Path(trainer.__file__).parent.joinpath(*(name.split(".")[1:] or ["__init__"])).with_suffix(".py")
        assert ast.dump(ast.parse(source)) == ast.dump(ast.parse(file.read_text(encoding="utf-8"))), name


def test_it_is_reproducible_and_fits_in_the_annotation_of_kubectl() -> None:
    before = parent_file.text()
    parent_file.text.cache_clear()
    assert parent_file.text() == before
    assert len(json.dumps(before)) < 200 * 1024
    assert str(Path.cwd()) not in before


@pytest.mark.parametrize("name", parent_file.modules())
def test_a_module_without_comments_is_the_same_program(name: str) -> None:
    source = parent_file._path(name).read_text()
    short = parent_file.without_comments(source)
    assert ast.dump(ast.parse(short), include_attributes=False) == ast.dump(ast.parse(source), include_attributes=False)
    assert short.count("\n") == source.count("\n")


def test_an_older_python_can_parse_it_and_its_head_has_a_remedy() -> None:
    ast.parse(parent_file.text(), feature_version=(3, 4))
    head = parent_file.text().partition("SOURCES")[0]
    assert head.isascii()
    assert "supervise: false" in head


@pytest.mark.parametrize("name", parent_file.modules())
def test_its_modules_run_on_python_3_8_and_import_only_the_standard_library(name: str) -> None:
    source = parent_file._path(name).read_text(encoding="utf-8")
    tree = ast.parse(source, feature_version=(3, 8))
    assert "'''" not in source
    # No annotation is ever evaluated.
    annotated = [
        part
        for node in ast.walk(tree)
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if isinstance(part, ast.AST)
    ]
    annotations = {part for one in annotated for part in ast.walk(one)}
    abstract = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "collections.abc"
        for alias in node.names
    }
    generic = {"dict", "list", "tuple", "set", "frozenset", "type", "deque", "Counter", *abstract}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            assert node.attr not in NEWER_NAMES, f"line {node.lineno}: Python 3.8 has no {node.attr}"
        if isinstance(node, ast.keyword):
            assert node.arg not in NEWER_KEYWORDS, f"line {node.lineno}: Python 3.8 has no {node.arg}="
        if isinstance(node, ast.Import):
            packages = {alias.name.partition(".")[0] for alias in node.names}
            # PyYAML, if it is installed, reads the file that --settings names.
            assert packages <= {*sys.stdlib_module_names, "trainer", "yaml"}, f"line {node.lineno}"
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node not in annotations:
            assert node.value.id not in generic, f"line {node.lineno}: Python 3.8 does not take {node.value.id}[...]; typing has one"
    if any(isinstance(node, ast.FunctionDef | ast.AnnAssign) for node in ast.walk(tree)):
        assert "from __future__ import annotations\n" in source
