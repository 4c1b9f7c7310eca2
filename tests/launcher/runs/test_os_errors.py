"""Refusals of the operating system, said with a remedy."""

import errno
import os

import pytest

from launcher.runs.os_errors import explain
from tests.golden_messages import Golden


@pytest.mark.parametrize("number, remedy", [(errno.ENOSPC, "free some space"), (errno.EAGAIN, "ulimit -u"), (errno.EMFILE, "ulimit -n")])
def test_every_common_trouble_has_a_remedy(number: int, remedy: str, golden: Golden) -> None:
    error = explain(OSError(number, os.strerror(number), "/runs/x"), "starting the run x")
    golden(error.message)
    assert remedy in error.remedy
    assert error.exit_code == 1
