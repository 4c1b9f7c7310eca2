"""Starts a test process of pytest-xdist, forked from one that has collected the tests, with all that they import.

Usage, by xdist: worker.py DIRECTORY -u -c CODE. The test process also collects the tests, in half a second of a core because all modules are
imported already; otherwise it would take five seconds, or nine if the modules are not compiled.
"""

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests import forked

signal.signal(signal.SIGINT, signal.SIG_IGN)  # the test process handles it
forked.shared.directory = sys.argv[1]
process = forked.Process([sys.executable, *sys.argv[2:]], cwd=Path.cwd(), env=os.environ, fds=(0, 1, 2), preload=forked.TESTS)
sys.exit(process.wait(timeout=1e6) & 0xFF)
