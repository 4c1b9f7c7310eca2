"""Where Keras's callbacks write: relative paths are in the run's `results`, and a log goes on where a run does."""

import csv
from collections.abc import Iterable
from pathlib import Path

import keras

from trainer.engine.run_record import write_atomically

# The attribute that is a path.
_PATHS: dict[type, str] = {keras.callbacks.CSVLogger: "filename", keras.callbacks.ModelCheckpoint: "filepath"}


def place(callbacks: Iterable[keras.callbacks.Callback], results: Path) -> None:
    """Let relative paths of callbacks begin in `results`; absolute ones and URLs stay."""
    for callback in callbacks:
        for kind, name in _PATHS.items():
            path = str(getattr(callback, name)) if isinstance(callback, kind) else ""
            if path and "://" not in path and not Path(path).is_absolute():
                setattr(callback, name, str(results / path))


def make_directories(callbacks: Iterable[keras.callbacks.Callback]) -> None:
    """Make the directories of logs, which Keras opens without a look."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.CSVLogger) and "://" not in callback.filename:
            Path(callback.filename).parent.mkdir(parents=True, exist_ok=True)


def go_on(callbacks: Iterable[keras.callbacks.Callback], epoch: int) -> None:
    """Let the logs of a run that goes on with `epoch` keep what they say of the epochs before, and no more."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.CSVLogger) and Path(callback.filename).is_file():
            callback.append = True
            _cut(Path(callback.filename), callback.sep, epoch)


def close(callbacks: Iterable[keras.callbacks.Callback]) -> None:
    """Close the logs of a run that is stopped: `on_train_end`, which does, is not called."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.CSVLogger) and callback.csv_file:
            callback.csv_file.close()


def _cut(path: Path, separator: str, epoch: int) -> None:
    """Drop the rows of `epoch` and later ones: training went back to an earlier checkpoint, and does them again."""
    with path.open(newline="", encoding="utf-8") as file:
        lines = file.readlines()
    head, *rows = lines or [""]
    kept = [row for row in rows if _epoch(row, separator) < epoch]
    if len(kept) < len(rows):
        write_atomically(path, "".join([head, *kept]))


def _epoch(row: str, separator: str) -> int:
    first = next(csv.reader([row], delimiter=separator), [""])[:1]
    return int(first[0]) if first and first[0].isdecimal() else -1
