"""Errors of a workload's configuration. All of them end a task with exit code 2: a retry cannot help.

WorkloadError      the workload cannot be created, trained or evaluated as configured
└── DataError      its data is missing, or not as expected
"""

from pathlib import Path

COPY_AGAIN = "Copy the published file there again."


class WorkloadError(ValueError):
    """The workload cannot be created, trained or evaluated as configured. The message says what to change."""

    reason = "the configuration is wrong"  # the cause in the event `failed`


class DataError(WorkloadError):
    """Data is missing or wrong. The message names the file or function, what was found, what was expected and the remedy."""

    reason = "the data cannot be used"


def check_directory(directory: Path, files: str, *alternatives: str) -> None:
    """Raise DataError if the directory of a workload's published `files` is missing; `alternatives` are other values of train.data."""
    if not directory.is_dir():
        raise DataError(
            f"train.data {directory}: no such directory on this machine. "
            f"Expected {''.join(f'`{name}`, ' for name in alternatives)}or a directory with {files}, readable by every task."
        )


def wrong_file(path: Path, found: str, expected: str, remedy: str) -> DataError:
    """Return the error for an invalid data file; `remedy` is a sentence."""
    return DataError(f"{path}: found {found}; expected {expected}. {remedy}")
