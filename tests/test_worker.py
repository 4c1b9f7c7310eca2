"""Test processes that are forked from one that has collected the tests."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.conftest import is_alive, wait_until

ROOT = Path(__file__).parents[1]
# A module with one quick test, by which pytest finds tests/conftest.py.
OTHER = "tests/launcher/runs/test_os_errors.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-n1", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)


def test_a_module_that_cannot_be_imported_is_an_error_and_not_without_tests(tmp_path: Path) -> None:
    broken = tmp_path / "test_broken.py"
    broken.write_text("import no_such_module\n\n\ndef test_it() -> None:\n    pass\n")
    done = run(OTHER, str(broken))
    assert (done.returncode, "No module named 'no_such_module'" in done.stdout) == (1, True), done.stdout + done.stderr


def test_a_test_process_that_dies_fails_its_test_and_another_goes_on(tmp_path: Path) -> None:
    (tmp_path / "test_dying.py").write_text("import os\n\n\ndef test_it() -> None:\n    os.kill(os.getpid(), 9)\n")
    done = run(OTHER, str(tmp_path / "test_dying.py"))
    assert "crashed while running" in done.stdout, done.stdout + done.stderr
    assert " 1 failed, " in done.stdout
    assert " passed" in done.stdout


@pytest.mark.slow
def test_a_test_process_that_does_not_end_is_killed(tmp_path: Path) -> None:
    stays = "import os, threading, time\nfrom pathlib import Path\n\n\ndef test_it() -> None:\n"
    stays += (
        f"    Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\n    threading.Thread(target=time.sleep, args=(600,)).start()\n"
    )
    (tmp_path / "test_staying.py").write_text(stays)
    done = run(OTHER, str(tmp_path / "test_staying.py"))
    assert done.returncode == 0, done.stdout + done.stderr
    pid = int((tmp_path / "pid").read_text())
    wait_until("the test process to be killed", lambda: not is_alive(pid), told=lambda: pid)
