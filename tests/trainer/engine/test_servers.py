"""Servers hear that the run is done, also from a chief that leaves at once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.engine import servers_here

SERVERS = 3
CHIEF = """
import json, os, sys
import tensorflow as tf
from trainer.engine import servers
from trainer.tf_config import parse
cluster = json.loads(sys.argv[1])["cluster"]
tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec(cluster), job_name="chief", task_index=0, protocol="grpc")
os._exit(len(servers.stop_all(parse(sys.argv[1]), sys.argv[2])))
"""


@pytest.mark.slow
def test_a_chief_that_leaves_at_once_has_told_every_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in servers_here.ENVIRONMENT.items():  # which sets it for good: here it is put back
        monkeypatch.setenv(key, value)
    with servers_here.servers(str(tmp_path), ps=1, workers=SERVERS - 1) as here:
        command = [sys.executable, "-c", CHIEF, here.tf_config, str(tmp_path)]
        done = subprocess.run(command, cwd=servers_here.ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=90, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        assert {name: process.wait(timeout=15) for name, process in here.processes.items()} == dict.fromkeys(here.processes, 0)
