"""Test processes, which are forked from a process that has collected the tests."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import is_alive
from tests.waiting import until

ROOT = Path(__file__).parents[1]
# A module with one quick test; pytest finds tests/conftest.py by its path.
OTHER = "tests/launcher/runs/test_os_errors.py"

BROKEN = """
import no_such_module

def test_it():
    pass
"""
DYING = """
import os

def test_it():
    os.kill(os.getpid(), 9)
"""
STAYING = """
import os, threading, time
from pathlib import Path

def test_it():
    Path(__file__).with_name("pid").write_text(str(os.getpid()))
    threading.Thread(target=time.sleep, args=(600,)).start()
"""


def run(directory: Path, module: str) -> subprocess.CompletedProcess[str]:
    """Run the other module and this one in one forked test process."""
    (directory / "test_this.py").write_text(module, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-n1", "-p", "no:cacheprovider", OTHER, str(directory / "test_this.py")]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)


def test_a_module_that_cannot_be_imported_is_reported_as_an_error(tmp_path: Path) -> None:
    result = run(tmp_path, BROKEN)
    assert (result.returncode, "No module named 'no_such_module'" in result.stdout) == (1, True), result.stdout + result.stderr


def test_a_test_process_that_dies_fails_its_test_and_another_runs_the_rest(tmp_path: Path) -> None:
    result = run(tmp_path, DYING)
    assert "crashed while running" in result.stdout, result.stdout + result.stderr
    assert " 1 failed, " in result.stdout
    assert " passed" in result.stdout


@pytest.mark.slow
def test_a_test_process_that_does_not_end_is_killed(tmp_path: Path) -> None:
    result = run(tmp_path, STAYING)
    assert result.returncode == 0, result.stdout + result.stderr
    pid = int((tmp_path / "pid").read_text())
    until("the test process to be killed", lambda: not is_alive(pid), seen=lambda: pid)
