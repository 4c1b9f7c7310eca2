"""Errors of the operating system, explained with a remedy."""

import errno
import os

import pytest

from launcher.runs.os_errors import explain
from tests.golden_messages import Golden


@pytest.mark.parametrize("number, remedy", [(errno.ENOSPC, "free some space"), (errno.EAGAIN, "ulimit -u"), (errno.EMFILE, "ulimit -n")])
def test_every_common_error_has_a_remedy(number: int, remedy: str, golden: Golden) -> None:
    error = explain(OSError(number, os.strerror(number), "/runs/x"), "starting the run x")
    golden(error.message)
    assert remedy in error.remedy
    assert error.exit_code == 1


@pytest.mark.parametrize(
    "error, text", [(OSError("Cannot call rmtree on a symbolic link"), "Cannot call rmtree on a symbolic link"), (OSError(), "OSError")]
)
def test_an_error_without_a_number_is_explained_by_its_own_text(error: OSError, text: str) -> None:
    assert explain(error, "deleting x").message == f"deleting x failed: {text}"
