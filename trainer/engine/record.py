"""The run's record: `run.json` in the run directory, replaced atomically by the chief."""

import json
import platform
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

from trainer import __version__
from trainer.events import finite

RunState = Literal["running", "succeeded", "stopped"]


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` with `text` in one step: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        written = Path(file.name)
        try:
            file.write(text)
            file.flush()
            written.chmod(0o644)  # as other files are; temporary ones are private
            written.replace(path)
        except OSError:
            written.unlink(missing_ok=True)
            raise


class Record:
    """What is known of a run, written whenever it changes."""

    def __init__(self, run_dir: Path, **facts: Any) -> None:
        import keras
        import tensorflow as tf

        self._path = run_dir / "run.json"
        versions = {
            "trainer": __version__,
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "python": platform.python_version(),
        }
        self._facts: dict[str, Any] = {**facts, "versions": versions, "started": time.time()}

    def update(self, state: RunState, step: int, **facts: Any) -> None:
        """Write the record with what is new."""
        self._facts.update(facts, state=state, step=step, updated=time.time())
        write_atomically(self._path, json.dumps(finite(self._facts), indent=2, allow_nan=False) + "\n")


def read(run_dir: Path) -> dict[str, Any]:
    """Return the record, empty where there is none yet."""
    try:
        facts = json.loads((run_dir / "run.json").read_text())
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}
