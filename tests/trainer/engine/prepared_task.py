"""A task that starts when a line comes on its stdin. It is forked early, because a chief with TensorFlow's threads cannot fork; see servers_here.py."""

import runpy
import sys
from pathlib import Path

if sys.stdin.readline():
    sys.path[0] = str(Path(__file__).resolve().parents[3])
    runpy.run_module("trainer.task", run_name="__main__", alter_sys=True)
