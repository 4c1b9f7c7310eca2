"""TensorFlow's announcements are dropped; all other output to stderr stays."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def stderr_of(body: str) -> tuple[int, str]:
    program = f"import os, sys\nfrom trainer.task import importing_silently\n{body}"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
    return result.returncode, result.stderr


def test_importing_tensorflow_writes_nothing() -> None:
    assert stderr_of("with importing_silently():\n    import tensorflow") == (0, "")


def test_other_lines_stay_in_order() -> None:
    code, text = stderr_of(
        "with importing_silently():\n"
        "    os.write(2, b'I0000 00:00:1 port.cc] oneDNN is on\\nW0000 careful\\n')\n"
        "    print('from Python', file=sys.stderr)\n"
        "print('after', file=sys.stderr)"
    )
    assert (code, text) == (0, "W0000 careful\nfrom Python\nafter\n")


def test_a_failed_import_still_shows_its_error() -> None:
    code, text = stderr_of("with importing_silently():\n    print('on the way', file=sys.stderr)\n    import no_such_module")
    assert code == 1
    assert text.startswith("on the way\n")
    assert "No module named 'no_such_module'" in text


def test_the_garbage_collector_works_again_afterwards() -> None:
    assert stderr_of("import gc\nwith importing_silently():\n    assert not gc.isenabled()\nassert gc.isenabled()") == (0, "")
