"""Imports TensorFlow without its announcements: two lines about oneDNN that no setting silences.

They are written before any log level is read, in every task of every run, and look like errors to a newcomer.
"""

import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

_CHATTER = (b"WARNING: All log messages before absl::InitializeLog()", b"I0000 ")


@contextmanager
def importing() -> Iterator[None]:
    """Hold back what is written to stderr inside, then write it without the announcements.

    The garbage collector rests meanwhile: what an import makes stays, and looking through it again and again
    takes a sixth of TensorFlow's import time.
    """
    sys.stderr.flush()
    gc.disable()
    real = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(real, 2)
            os.close(real)
            held.seek(0)
            for line in held:
                if not line.startswith(_CHATTER):
                    os.write(2, line)
            gc.freeze()
            gc.enable()
