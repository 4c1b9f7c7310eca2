"""The `trainer` command: its arguments, its errors and its start time."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tests.golden_messages import Golden
from tests.waiting import until
from trainer.__main__ import _recording

REPOSITORY = Path(__file__).parents[2]
SETTINGS = {"run": "a", "run_dir": "/runs/a", "scratch_dir": "/tmp/a", "train": {"workload": "mnist"}}
TF_CONFIG = {"cluster": {"chief": ["c:1"], "worker": ["w:1"], "ps": ["p:1"]}, "task": {"type": "worker", "index": 0}}


def trainer(*arguments: str, text: str | None = None, **env: Any) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TRAINER_", "TF_CONFIG"))}
    variables = {name: value if isinstance(value, str) else json.dumps(value) for name, value in env.items()}
    return subprocess.run(
        [sys.executable, "-m", "trainer", *arguments],
        input=text, cwd=REPOSITORY, env={**inherited, **variables}, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


def test_nothing_to_run_is_refused_with_help() -> None:
    result = trainer()
    assert result.returncode == 2
    assert "usage: trainer" in result.stderr
    assert "TRAINER_SETTINGS or --settings FILE" in result.stderr


def test_help_has_the_exit_codes() -> None:
    result = trainer("--help")
    assert result.returncode == 0
    for code in ("  2  a final failure; not started again", " 75  a peer was lost", "143  asked to stop"):
        assert code in result.stdout


def test_version() -> None:
    assert trainer("--version").stdout.startswith("trainer ")


def test_a_check_starts_nothing(golden: Golden) -> None:
    result = trainer("--check", TRAINER_SETTINGS={**SETTINGS, "strategy": "parameter_server"}, TF_CONFIG=TF_CONFIG)
    assert result.returncode == 0
    golden(result.stdout.strip())


def test_settings_come_from_a_file_or_stdin_too(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(SETTINGS))
    assert trainer("--check", "--settings", str(file)).returncode == 0
    assert trainer("--check", "--settings", "-", text=file.read_text()).returncode == 0
    assert trainer("--check", "--settings", "-", text="run: a").returncode == 2


def test_problems_of_tf_config_and_settings_come_together() -> None:
    result = trainer(
        TRAINER_SETTINGS={"run": 1},
        TF_CONFIG={"cluster": {}, "task": {"type": "master", "index": 0}},
        TRAINER_LIFELINE="77",
        TRAINER_STOP_SECONDS="soon",
    )
    assert result.returncode == 2
    for part in (
        "TF_CONFIG.task.type",
        "TRAINER_SETTINGS.run is 1",
        "TRAINER_SETTINGS.run_dir is missing",
        "TRAINER_LIFELINE is '77'",
        "TRAINER_STOP_SECONDS is 'soon'",
    ):
        assert f"trainer: {part}" in result.stderr
    event = json.loads(result.stdout)
    assert (event["event"], event["exit_code"], event["cause"]) == ("failed", 2, "the configuration is wrong")
    assert "(and 5 more)" in event["detail"]


@pytest.mark.parametrize(
    "arguments, settings, part",
    [
        (["--", "true"], SETTINGS, "have a train section and a program follows --"),
        ([], {**SETTINGS, "train": None}, "no train section and no program follows --"),
        (["--"], None, "no program follows --"),
        (["--", "no-such-program"], None, "'no-such-program' was not found"),
        ([], {**SETTINGS, "strategy": "parameter_server"}, "needs a ps"),
    ],
)
def test_conflicting_arguments_are_refused(arguments: list[str], settings: dict[str, Any] | None, part: str) -> None:
    result = trainer(*arguments, TRAINER_SETTINGS=settings or "")
    assert result.returncode == 2
    assert part in result.stderr


def test_missing_tensorflow_is_reported_at_once(tmp_path: Path) -> None:
    site = Path(sysconfig.get_paths()["purelib"])
    for package in site.iterdir():
        if not package.name.startswith("tensorflow"):
            (tmp_path / package.name).symlink_to(package)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path), "TRAINER_SETTINGS": json.dumps(SETTINGS)}
    command = [sys.executable, "-S", "-m", "trainer"]
    result = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert result.returncode == 2, result.stderr
    assert "trainer: TensorFlow is not installed" in result.stderr
    assert "pip install 'tf-launcher[trainer]'" in json.loads(result.stdout)["detail"]


def test_a_users_program_runs_with_the_trainers_environment() -> None:
    script = 'echo "$GRPC_FAIL_FAST $TRAINER_ATTEMPT $1"'
    result = trainer("--events", "text", "--", "sh", "-c", script, "sh", "--events", TF_CONFIG=TF_CONFIG)
    assert result.returncode == 0
    assert "use_caller 1 --events" in result.stdout.splitlines()
    assert "attempt 1 started as worker" in result.stdout


def test_a_users_program_finds_the_cuda_library_that_tensorflow_does_not_find(tmp_path: Path) -> None:
    """benchmarks/gpu.py shows, on a GPU, that TensorFlow then uses it."""
    packages = tmp_path / "nvidia/cusolver"
    (packages / "lib").mkdir(parents=True)
    python_path = {"PYTHONPATH": str(tmp_path)}
    command = ("--", "sh", "-c", 'echo "path=$LD_LIBRARY_PATH"')
    assert f"path=/mine:{packages}/lib" in trainer(*command, LD_LIBRARY_PATH="/mine", **python_path).stdout.splitlines()
    assert f"path={packages}/lib" in trainer(*command, LD_LIBRARY_PATH="", **python_path).stdout.splitlines()
    packages.rename(tmp_path / "nvidia/other")
    assert "path=/mine" in trainer(*command, LD_LIBRARY_PATH="/mine", **python_path).stdout.splitlines()


def test_a_users_program_finds_the_directories_that_it_writes_to(tmp_path: Path) -> None:
    result = trainer("--", "sh", "-c", 'echo 1 > "$RUN_DIR/results/a" && echo 1 > "$RUN_DIR/b"', RUN_DIR=str(tmp_path / "runs" / "a"))
    assert result.returncode == 0, result.stderr


def test_a_program_runs_although_its_run_directory_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert trainer("--", "true", RUN_DIR=str(tmp_path / "file" / "a")).returncode == 0


def test_settings_limit_the_restarts_of_a_users_program() -> None:
    result = trainer("--", "sh", "-c", "exit 7", TRAINER_SETTINGS={**SETTINGS, "train": None, "max_restarts": 0})
    assert result.returncode == 7
    assert "limit of 0 restarts" in result.stdout


def test_settings_of_a_role_override_those_of_all_tasks() -> None:
    settings = {**SETTINGS, "train": None, "max_restarts": 5, "restarts": {"chief": {"restart": "exit_code"}, "ps": {"restart": "always"}}}
    result = trainer("--", "sh", "-c", "exit 7", TRAINER_SETTINGS=settings)
    assert result.returncode == 7
    assert "`restart: exit_code` makes exit codes below 128 final" in result.stdout


def test_settings_reach_the_program_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("{run: a, run_dir: /runs/a, scratch_dir: /scratch, max_restarts: 1}")
    result = trainer("--settings", str(file), "--", "sh", "-c", 'echo "$TRAINER_SETTINGS"')
    expected = {"run": "a", "run_dir": "/runs/a", "scratch_dir": "/scratch", "max_restarts": 1}
    assert json.loads(result.stdout.splitlines()[-1]) == expected  # without defaults: the workload decides those


def test_a_users_program_waits_for_its_peers_by_name(trainers: Any, ports: Any) -> None:
    address = ports.address()
    config = {"cluster": {"worker": [ports.address(), address]}, "task": {"type": "worker", "index": 0}}
    run = trainers.trainer("--", "sleep", "60", env={"TF_CONFIG": json.dumps(config)})
    waiting = run.event("waiting")
    assert waiting["task"] == "worker-0"
    assert waiting["missing"] == [{"task": "worker-1", "address": address, "reason": "connection refused"}]
    assert waiting["seconds"] > 4.5


def test_the_parent_imports_little_and_starts_quickly() -> None:
    program = (
        "import sys; import trainer.__main__, trainer.parent, trainer.configuration, trainer.tf_config, trainer.peers\n"
        "print(sorted({'tensorflow', 'keras', 'numpy', 'typer', 'rich', 'yaml', 'asyncio', 'launcher'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, timeout=30, check=True)
    assert result.stdout == "[]\n"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert trainer("--check", TRAINER_SETTINGS=SETTINGS).returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.6  # processor time: 0.15 s


# The first process of a container, whose parent has PID 1; it waits long for readers.
IN_A_CONTAINER = """
import os, sys
import trainer.__main__ as trainer
os.getppid, trainer._EXIT_DELAY = lambda: 1, 60
sys.exit(trainer.main())
"""


def test_a_wrong_configuration_ends_with_2_on_macos_where_process_1_is_launchd() -> None:
    macos = IN_A_CONTAINER.replace("\nos.getppid", "\ndel trainer.signal.sigtimedwait\nsys.platform = 'darwin'\nos.getppid")
    environment = {**os.environ, "TRAINER_SETTINGS": "{"}
    done = subprocess.run(
        [sys.executable, "-c", macos], cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 2, done.stderr


@pytest.mark.parametrize("detail, failure", [("", "no progress for 60 s"), ("in its code", "no progress for 60 s: in its code")])
def test_a_failure_is_recorded_with_its_detail_if_there_is_one(detail: str, failure: str) -> None:
    reported: dict[str, tuple[float, str]] = {}
    _recording(lambda *_, **__: None, reported)("failed", cause="no progress for 60 s", detail=detail)
    assert reported["failed"][1] == failure


@pytest.mark.parametrize("program, code", [("exit 2", 2), ("trap 'exit 9' TERM; echo up; while :; do sleep 0.05; done", 9)])
def test_a_stopped_trainer_ends_with_its_own_code_without_waiting_for_readers(program: str, code: int) -> None:
    """Each second counts: an engine kills it once its grace period is over."""
    command = [sys.executable, "-c", IN_A_CONTAINER, "--", "sh", "-c", program]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TRAINER_", "TF_CONFIG"))}
    with subprocess.Popen(command, cwd=REPOSITORY, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if "failed" in line or line == "up\n")
        while process.poll() is None:  # a signal that arrives while it exits is lost
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(3)
        assert process.returncode == code


def test_a_trainer_stopped_before_its_program_starts_does_not_start_it() -> None:
    program = """
import os, signal, sys
import trainer.__main__ as trainer
make_config = trainer._config
trainer._config = lambda *arguments: os.kill(os.getpid(), signal.SIGTERM) or make_config(*arguments)
sys.exit(trainer.main())
"""
    result = subprocess.run(
        [sys.executable, "-c", program, "--", "echo", "started"], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, "started" in result.stdout) == (143, False)


def test_a_trainer_stopped_while_it_reads_its_settings_ends_as_stopped(tmp_path: Path) -> None:
    os.mkfifo(settings := tmp_path / "settings")
    command = [sys.executable, "-m", "trainer", "--settings", str(settings)]
    with subprocess.Popen(command, cwd=REPOSITORY) as process, settings.open("w"):  # opened once it reads

        def has_ended() -> bool:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            return process.returncode is not None

        # Again after 5 s: Python handles a signal that comes just before `read` only when the next one interrupts it.
        until("the trainer's end", has_ended, 25, seen=process.poll)
        assert process.returncode == 143
