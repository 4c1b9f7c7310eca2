"""TensorFlow's announcements are dropped; all other output to stderr stays."""

import subprocess
import sys
from pathlib import Path

import pytest

from trainer import captured_import

ROOT = Path(__file__).resolve().parents[2]


def stderr_of(body: str) -> tuple[int, str]:
    program = f"import os, sys\nfrom trainer.captured_import import capture_import\n{body}"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
    return result.returncode, result.stderr


def test_importing_tensorflow_writes_nothing() -> None:
    assert stderr_of("with capture_import():\n    import tensorflow") == (0, "")


def test_other_lines_stay_in_order() -> None:
    code, text = stderr_of(
        "with capture_import():\n"
        "    os.write(2, b'I0000 00:00:1 port.cc] oneDNN is on\\nW0000 careful\\n')\n"
        "    print('from Python', file=sys.stderr)\n"
        "print('after', file=sys.stderr)"
    )
    assert (code, text) == (0, "W0000 careful\nfrom Python\nafter\n")


def test_a_failed_import_still_shows_its_error() -> None:
    code, text = stderr_of("with capture_import():\n    print('on the way', file=sys.stderr)\n    import no_such_module")
    assert code == 1
    assert text.startswith("on the way\n")
    assert "No module named 'no_such_module'" in text


@pytest.mark.parametrize("end", ["pass", "raise ImportError", "os.abort()"])
def test_only_an_import_that_kills_the_process_leaves_its_output_to_the_parent(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINER_ERROR_FILE", str(tmp_path / "error"))
    _, text = stderr_of(f"with capture_import():\n    os.write(2, b'I0000 oneDNN\\nF0000 no AVX here\\n')\n    {end}")
    left = captured_import.take_captured_output(tmp_path / "error")
    assert (text + left).startswith("F0000 no AVX here")
    assert bool(left) == (end == "os.abort()")
    assert not list(tmp_path.iterdir())


def test_the_garbage_collector_works_again_afterwards() -> None:
    assert stderr_of("import gc\nwith capture_import():\n    assert not gc.isenabled()\nassert gc.isenabled()") == (0, "")
