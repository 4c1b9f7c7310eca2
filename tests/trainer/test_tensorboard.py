"""TensorBoard as it is run: without TensorFlow, unless somebody's plug-in may need it."""

import subprocess
import sys
from pathlib import Path

# In place of what serves: tells whether TensorFlow could be imported there.
PROGRAM = """
from tensorboard import program

def told(board):
    try:
        import tensorflow
    except ImportError:
        print("without")
    else:
        print("with")

program.TensorBoard.main = told
from trainer import tensorboard
sys.argv = ["tensorboard", "--logdir", "/tmp"]
tensorboard.main()
"""


def tensorflow_there(path: Path) -> str:
    """Run it with a directory on the path, and return whether TensorFlow was there: with, or without."""
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(path)!r})\n{PROGRAM}"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.strip()


def test_tensorboard_does_without_tensorflow(tmp_path: Path) -> None:
    assert tensorflow_there(tmp_path) == "without"


def test_where_tensorboard_has_no_program_that_reads_logs_tensorflow_is_there(tmp_path: Path) -> None:
    # As its package is where none was built for the machine.
    (tmp_path / "first" / "tensorboard_data_server").mkdir(parents=True)
    (tmp_path / "first" / "tensorboard_data_server" / "__init__.py").write_text("def server_binary():\n    return None\n")
    assert tensorflow_there(tmp_path / "first") == "with"


def test_with_a_plug_in_of_others_tensorflow_is_there(tmp_path: Path) -> None:
    (tmp_path / "curves.py").write_text("from tensorboard.plugins import base_plugin\n\n\nclass Plugin(base_plugin.TBLoader):\n    pass\n")
    made = tmp_path / "curves-1.0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: curves\nVersion: 1.0\n")
    (made / "entry_points.txt").write_text("[tensorboard_plugins]\ncurves = curves:Plugin\n")
    assert tensorflow_there(tmp_path) == "with"


def test_it_is_tensorboard() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "trainer.tensorboard", "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip()[0].isdigit()
