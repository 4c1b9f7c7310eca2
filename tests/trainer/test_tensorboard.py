"""TensorBoard runs without TensorFlow, unless it or a plug-in of others may need it."""

import subprocess
import sys
from pathlib import Path

# Replaces the server: prints whether TensorFlow can be imported, without the seconds that its import takes.
PROGRAM = """
from importlib.util import find_spec
from tensorboard import program

def report(board):
    print("with" if find_spec("tensorflow") else "without")

program.TensorBoard.main = report
from trainer import tensorboard
sys.argv = ["tensorboard", "--logdir", "/tmp"]
tensorboard.main()
"""


def tensorflow_importable(path: Path) -> str:
    """Run it with a directory on the path; return `with` if TensorFlow can be imported, else `without`."""
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(path)!r})\n{PROGRAM}"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.strip()


def test_tensorboard_runs_without_tensorflow(tmp_path: Path) -> None:
    assert tensorflow_importable(tmp_path) == "without"


def test_tensorflow_can_be_imported_if_tensorboard_has_no_program_that_reads_logs(tmp_path: Path) -> None:
    # Like the package for a machine for which none was built.
    (tmp_path / "first" / "tensorboard_data_server").mkdir(parents=True)
    (tmp_path / "first" / "tensorboard_data_server" / "__init__.py").write_text("def server_binary():\n    return None\n")
    assert tensorflow_importable(tmp_path / "first") == "with"


def test_tensorflow_can_be_imported_by_a_plug_in_of_others(tmp_path: Path) -> None:
    (tmp_path / "curves.py").write_text("from tensorboard.plugins import base_plugin\n\n\nclass Plugin(base_plugin.TBLoader):\n    pass\n")
    dist_info = tmp_path / "curves-1.0.dist-info"
    dist_info.mkdir()
    (dist_info / "METADATA").write_text("Metadata-Version: 2.1\nName: curves\nVersion: 1.0\n")
    (dist_info / "entry_points.txt").write_text("[tensorboard_plugins]\ncurves = curves:Plugin\n")
    assert tensorflow_importable(tmp_path) == "with"


def test_the_version_is_that_of_tensorboard() -> None:
    result = subprocess.run(
        [sys.executable, "-P", "-m", "trainer.tensorboard", "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.strip()[0].isdigit()
