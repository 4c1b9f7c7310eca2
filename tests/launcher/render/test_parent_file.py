"""The parent of a program as one file: what it does in a Python that has nothing else, on this Python and on the oldest that it is for."""

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
WITHIN = 60.0  # seconds for what takes a tenth of one

# Names that Python has since 3.9 and later, and a check of syntax does not see.
NEWER = {
    *("removeprefix", "removesuffix", "waitstatus_to_exitcode", "cache", "pidfd_open", "is_relative_to", "with_stem", "readlink", "bit_count"),
    *("hardlink_to", "pairwise", "batched", "unparse", "randbytes", "to_thread", "StrEnum", "EnumType", "TypeAlias", "ParamSpec"),
    *("stdlib_module_names", "orig_argv", "eventfd"),
}  # fmt: skip
NEWER_KEYWORDS = {"strict", "slots", "kw_only", "match_args", "process_group", "umask", "root_dir", "delete_on_close"}


@functools.cache
def oldest() -> str | None:
    """Return a Python 3.8 of this machine."""
    named = [path for path in (shutil.which("python3.8"), *glob.glob(str(Path.home() / ".pyenv/versions/3.8*/bin/python"))) if path]  # noqa: PTH207
    uv = Path(sys.executable).with_name("uv")
    if uv.exists():
        named += subprocess.run([uv, "python", "find", "3.8"], capture_output=True, text=True, check=False, timeout=WITHIN).stdout.split()
    for path in named:
        asked = [path, "-c", "import sys; print(sys.version_info[:2], sys.executable)"]
        said = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=WITHIN).stdout
        if said.startswith("(3, 8) "):
            return said.split()[-1]
    return None


@pytest.fixture(scope="module", params=["this Python", "Python 3.8"])
def python(request: pytest.FixtureRequest) -> str:
    found = sys.executable if request.param == "this Python" else oldest()
    if found is None:
        pytest.skip("there is no Python 3.8 here: not on PATH, not of pyenv, not of uv")
    return found


Started = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(python: str, tmp_path: Path) -> Iterator[Started]:
    """Start the file in an empty directory, isolated from everything but the standard library."""
    file = tmp_path / "parent.py"
    file.write_text(parent_file.text(), encoding="utf-8")
    empty = tmp_path / "empty"
    empty.mkdir()
    running: list[subprocess.Popen[str]] = []

    def begin(*arguments: str, words: tuple[str, ...] = (str(file),), **env: Any) -> subprocess.Popen[str]:
        given = {name: value if isinstance(value, str) else json.dumps(value) for name, value in env.items()}
        running.append(
            subprocess.Popen(
                [python, "-I", "-S", *words, *arguments],
                cwd=empty,
                env={"PATH": os.environ["PATH"], **given},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.communicate(timeout=WITHIN)
    assert list(empty.iterdir()) == []


def ended(process: "subprocess.Popen[str]") -> tuple[int, list[str], str]:
    out, err = process.communicate(timeout=WITHIN)
    return process.returncode, out.splitlines(), err


def events(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines if line.startswith('{"event":')]


def test_a_program_runs_to_its_end_with_what_its_parent_adds(start: Started) -> None:
    script = 'echo "$GRPC_FAIL_FAST $1 $TRAINER_PARENT."; exit 0'
    code, lines, err = ended(start("--", "sh", "-c", script, "sh", "--check", TF_CONFIG=CHIEF))
    assert (code, err) == (0, "")
    assert "use_caller --check ." in lines
    assert [event["event"] for event in events(lines)] == ["started"]


def test_where_no_file_can_be_put_the_text_comes_in_a_variable_that_the_program_does_not_get(start: Started) -> None:
    words = role_rules.PARENT_IN_VARIABLE[role_rules.PARENT_IN_VARIABLE.index("-c") :]
    packed = {parent_file.VARIABLE: parent_file.packed()}
    code, lines, err = ended(start("--", "sh", "-c", 'echo "$TRAINER_PARENT."', words=words, TF_CONFIG=CHIEF, **packed))
    assert (code, err) == (0, "")
    assert "." in lines
    assert len(parent_file.VARIABLE) + len(parent_file.packed()) < 100 * 1024  # Linux takes 128 KiB


def test_a_program_that_is_killed_is_started_again(start: Started) -> None:
    code, lines, _ = ended(start("--", "sh", "-c", "[ $TRAINER_ATTEMPT = 2 ] || kill -9 $$", TF_CONFIG=CHIEF))
    assert code == 0
    assert [event["event"] for event in events(lines)] == ["started", "restarting", "started"]


def test_the_settings_say_how_often(start: Started) -> None:
    settings = {"run": "a", "run_dir": "/runs/a", "scratch_dir": "/tmp/a", "max_restarts": 0}
    code, lines, _ = ended(start("--", "sh", "-c", "exit 7", TF_CONFIG=CHIEF, TRAINER_SETTINGS=settings))
    assert code == 7
    assert "the limit of 0 restarts is reached" in events(lines)[-1]["cause"]


def test_every_problem_of_tf_config_and_settings_is_told_at_once(start: Started) -> None:
    wrong = {"cluster": {"worker": ["a"]}, "task": {"type": "master", "index": 0}}
    code, lines, err = ended(start("--", "true", TF_CONFIG=wrong, TRAINER_SETTINGS={"run": "a", "run_dir": 1, "scratch_dir": "/tmp/a"}))
    assert code == 2
    for part in (
        "TF_CONFIG.cluster.worker[0]: 'a' is not host:port",
        "TF_CONFIG.task.type: unknown task type",
        "TRAINER_SETTINGS.run_dir is 1",
    ):
        assert f"trainer: {part}" in err
    assert (events(lines)[0]["event"], events(lines)[0]["exit_code"]) == ("failed", 2)


def test_without_a_program_it_says_what_it_is_for(start: Started) -> None:
    code, _, err = ended(start(TRAINER_SETTINGS={}))
    assert code == 2
    assert "no program follows --" in err


def test_output_that_looks_like_an_event_is_none(start: Started) -> None:
    code, lines, _ = ended(start("--", "sh", "-c", """printf '3/10 ['; echo; echo '{"event":"done"}'""", TF_CONFIG=CHIEF))
    assert code == 0
    assert ' {"event":"done"}' in lines
    assert [event["event"] for event in events(lines)] == ["started"]


def test_it_is_well_while_its_program_runs_and_passes_the_signal_to_stop_on(start: Started) -> None:
    process = start("--", "sh", "-c", "trap 'echo saved; exit 143' TERM; echo here; while :; do sleep 0.1; done", TF_CONFIG=CHIEF)
    assert process.stdout is not None
    assert any(line == "here\n" for line in iter(process.stdout.readline, ""))
    health = ended(start("--health", TF_CONFIG=CHIEF))
    assert (health[0], "chief: process" in health[1][0]) == (0, True), health
    process.send_signal(signal.SIGTERM)
    code, lines, _ = ended(process)
    assert code == 143
    assert "saved" in lines
    assert "stopping" in [event["event"] for event in events(lines)]


def test_no_program_outlives_it(start: Started, tmp_path: Path) -> None:
    process = start("--", "sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 600", TF_CONFIG=CHIEF)
    file = tmp_path / "pid"
    until("the program", lambda: file.exists() and file.read_text().endswith("\n"), WITHIN, seen=process.poll)
    process.kill()
    pid = int(file.read_text())
    until("its end", lambda: not is_alive(pid), WITHIN, seen=process.poll)


def test_every_module_of_it_can_be_imported(python: str, tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(parent_file.text(), encoding="utf-8")
    program = (
        "import importlib, sys\nsys.argv = ['parent.py', '--version']\n"
        "try:\n    exec(compile(open('parent.py').read(), 'parent.py', 'exec'))\nexcept SystemExit:\n    pass\n"
        "print(*sorted(importlib.import_module(name).__name__ for name in SOURCES))"
    )
    done = subprocess.run([python, "-I", "-S", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=WITHIN)
    assert tuple(done.stdout.splitlines()[-1].split()) == parent_file.modules()


def test_a_traceback_tells_the_line_of_the_file() -> None:
    lines = parent_file.text().splitlines()
    first = next(number for number, line in enumerate(lines, 1) if line.startswith("SOURCES['trainer.process_group']"))
    assert f"({first}, r'''" in lines[first - 1]


def test_leaving_comments_out_changes_no_code() -> None:
    assigned = [node for node in ast.parse(parent_file.text()).body if isinstance(node, ast.Assign)]
    sources = {
        ast.literal_eval(node.targets[0].slice): ast.literal_eval(node.value)
        for node in assigned
        if isinstance(node.targets[0], ast.Subscript)
    }
    assert set(sources) == set(parent_file.modules())
    for name, (_, left) in sources.items():
        file = Path(trainer.__file__).parent.joinpath(*(name.split(".")[1:] or ["__init__"])).with_suffix(".py")
        assert ast.dump(ast.parse(left)) == ast.dump(ast.parse(file.read_text(encoding="utf-8"))), name


def test_it_is_the_same_each_time_and_fits_in_the_annotation_of_kubectl() -> None:
    before = parent_file.text()
    parent_file.text.cache_clear()
    assert parent_file.text() == before
    assert len(json.dumps(before)) < 200 * 1024
    assert str(Path.cwd()) not in before


def test_an_older_python_can_read_it_and_is_told_what_it_lacks() -> None:
    ast.parse(parent_file.text(), feature_version=(3, 4))
    head = parent_file.text().partition("SOURCES")[0]
    assert head.isascii()
    assert "supervise: false" in head


@pytest.mark.parametrize("name", parent_file.modules())
def test_its_modules_are_for_python_3_8_and_import_the_standard_library_alone(name: str) -> None:
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
            assert node.attr not in NEWER, f"line {node.lineno}: Python 3.8 has no {node.attr}"
        if isinstance(node, ast.keyword):
            assert node.arg not in NEWER_KEYWORDS, f"line {node.lineno}: Python 3.8 has no {node.arg}="
        if isinstance(node, ast.Import):
            packages = {alias.name.partition(".")[0] for alias in node.names}
            # PyYAML reads a file that --settings names, where it is there.
            assert packages <= {*sys.stdlib_module_names, "trainer", "yaml"}, f"line {node.lineno}"
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node not in annotations:
            assert node.value.id not in generic, f"line {node.lineno}: Python 3.8 does not take {node.value.id}[...]; typing has one"
    if any(isinstance(node, ast.FunctionDef | ast.AnnAssign) for node in ast.walk(tree)):
        assert "from __future__ import annotations\n" in source
