"""The run's record: `run.json` in the run directory, replaced atomically by the chief's training process, and its parent.

While it is `running`, `updated` is never older than some ten seconds, unless something takes long; else the chief was
killed together with its parent.
"""

import json
import platform
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trainer import __version__
from trainer.events import finite

if TYPE_CHECKING:
    from trainer.command_settings import CommandSettings
    from trainer.settings import TrainerSettings

RunState = Literal["running", "succeeded", "stopped", "failed"]


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace the content of `path` atomically: a reader sees the old file or the new one. Text becomes UTF-8."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("wb", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        temporary = Path(file.name)
        try:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            temporary.chmod(0o644)  # as other files; temporary ones are private
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


class Record:
    """The facts about a run, written whenever they change."""

    def __init__(self, run_dir: Path, write: Callable[[Path, str], None] = write_atomically, **facts: Any) -> None:
        """`write` replaces a file."""
        import keras
        import tensorflow as tf

        self._path, self._write = run_dir / "run.json", write
        versions = {
            "trainer": __version__,
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "python": platform.python_version(),
        }
        self._lock = threading.Lock()  # the thread that saves records checkpoints
        self._facts: dict[str, Any] = {**facts, "versions": versions, "started": time.time()}

    def update(self, state: RunState, step: int | None, **facts: Any) -> None:
        """Add facts and write the record. `step` is None if it has not changed, or a program reports none. On a full disk the next update writes it."""
        with self._lock, suppress(OSError):
            self._facts.update(facts, state=state, updated=time.time(), **({} if step is None else {"step": step}))
            self._write(self._path, json.dumps(finite(self._facts), indent=2, allow_nan=False) + "\n")


def read(run_dir: Path) -> dict[str, Any]:
    """Return the record, empty if there is none yet."""
    try:
        facts = json.loads((run_dir / "run.json").read_text())
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def mark_ended(settings: "CommandSettings | TrainerSettings", failure: str) -> None:
    """Record that a run has failed, or was stopped if `failure` is empty, on behalf of its training process, which ended before it could.

    The facts that it recorded before stay, and a stop changes only `running`. Imports no TensorFlow.
    """
    run_dir = Path(settings.run_dir)
    recorded = read(run_dir)
    if not failure and recorded.get("state") != "running":
        return
    facts = {"name": settings.run, "strategy": settings.strategy, "spec_digest": settings.spec_digest, "step": 0, **recorded}
    facts |= {
        "state": "failed" if failure else "stopped",
        "reason": failure or "it ended before it could save; training continues from the last checkpoint",
        "updated": time.time(),
    }
    with suppress(OSError):  # its directory cannot be written: the event has reported it
        write_atomically(run_dir / "run.json", json.dumps(finite(facts), indent=2, allow_nan=False) + "\n")
