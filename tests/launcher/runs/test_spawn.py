"""A supervisor that fails to start, or whose start or stop nobody waits for: neither it nor its children are left."""

from io import FileIO
from pathlib import Path

import pytest

from launcher.errors import LauncherError
from launcher.plan.models import Plan
from launcher.runs import process_identity, spawn
from launcher.runs.paths import RunPaths
from tests.waiting import until

# Waits for a child in its session, as a supervisor waits for Docker Compose.
SUPERVISOR = """
import pathlib, subprocess, sys
child = subprocess.Popen(["sleep", "3600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
pathlib.Path(sys.argv[1], "child").write_text(str(child.pid))
{then}
"""


@pytest.mark.parametrize("then", ["child.wait()", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"], ids=["hangs", "is killed"])
def test_its_children_end_with_it(then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "waits.py").write_text(SUPERVISOR.format(then=then))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    paths = RunPaths(tmp_path / "runs" / "toy")
    plan = Plan("toy", "local", "single", "", (), str(paths.run_dir), 1.0, 1.0, None, ())
    lock = spawn.lock(paths)
    with pytest.raises(LauncherError, match="did not start within 5 s or ended at once"):
        spawn.start(paths, plan, {}, lock_fd=lock, is_cancelled=None, supervisor="waits", timeout=5.0)
    child = int((paths.run_dir / "child").read_text())
    until("the end of the child", lambda: process_identity.identify(child) is None, seen=lambda: child)


def test_a_start_that_is_interrupted_asks_the_supervisor_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tmp_path / "asked"
    (tmp_path / "starts.py").write_text(f"""
import os, pathlib, signal, sys
def stop(number, frame):
    pathlib.Path({str(asked)!r}).touch()
    sys.exit()
signal.signal(signal.SIGTERM, stop)
os.write(int(sys.argv[sys.argv.index("--ready-fd") + 1]), b".")
signal.pause()
""")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    paths = RunPaths(tmp_path / "runs" / "toy")
    plan = Plan("toy", "local", "single", "", (), str(paths.run_dir), 1.0, 1.0, None, ())

    def interrupt(ready: FileIO, *_: object) -> None:
        assert ready.read(1) == b"."
        raise KeyboardInterrupt

    monkeypatch.setattr(spawn, "_read_answer", interrupt)
    with pytest.raises(KeyboardInterrupt):
        spawn.start(paths, plan, {}, lock_fd=spawn.lock(paths), is_cancelled=None, supervisor="starts")
    until("the supervisor to be asked to stop", asked.exists, seen=paths.supervisor_log.read_text)


@pytest.mark.parametrize(
    "handler, answer, message, code",
    [
        ("signal.SIG_DFL", "", "the run toy was not started: its start was interrupted", 143),
        ("stop", "", "did not start within 5 s or ended at once", 1),
        ("stop", '{"message": "no image", "remedy": "build it", "interrupted": false}\n', "no image", 1),
        ("stop", '{"message": "", "remedy": "", "interrupted": true}\n', "the run toy was not started: its start was interrupted", 143),
    ],
    ids=["no handler", "no answer", "another failure", "interrupted"],
)
def test_a_start_that_is_cancelled_ends_with_its_supervisor(
    handler: str, answer: str, message: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "starts.py").write_text(f"""
import os, pathlib, signal, sys
def stop(number, frame):
    os.write(int(sys.argv[sys.argv.index("--ready-fd") + 1]), {answer.encode()!r})
    pathlib.Path(sys.argv[1], "asked").touch()
    sys.exit()
signal.signal(signal.SIGTERM, {handler})
pathlib.Path(sys.argv[1], "started").touch()
signal.pause()
""")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    paths = RunPaths(tmp_path / "runs" / "toy")
    plan = Plan("toy", "local", "single", "", (), str(paths.run_dir), 1.0, 1.0, None, ())
    cancelled = (paths.run_dir / "started").exists
    with pytest.raises(LauncherError, match=message) as raised:
        spawn.start(paths, plan, {}, lock_fd=spawn.lock(paths), is_cancelled=cancelled, supervisor="starts", timeout=5.0)
    assert raised.value.exit_code == code
    assert (paths.run_dir / "asked").exists() == (handler == "stop")


def test_files_with_the_user_s_env_are_private(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "runs" / "toy")
    plan = Plan("toy", "local", "single", "", (), str(paths.run_dir), 1.0, 1.0, None, ())
    lock = spawn.lock(paths)
    with pytest.raises(LauncherError):
        spawn.start(paths, plan, {"env": {"TOKEN": "s3cret"}}, lock_fd=lock, is_cancelled=None, supervisor="no.such.module")
    for file in (paths.plan, paths.spec.with_suffix(".new")):
        assert file.stat().st_mode & 0o077 == 0
