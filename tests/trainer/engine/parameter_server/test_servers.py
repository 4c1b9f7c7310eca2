"""Servers hear that the run is done, also from a chief that leaves at once."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainer.engine import servers_here

SERVERS = 3
CHIEF = """
import json, os, signal, sys
import tensorflow as tf
from trainer.engine.parameter_server import servers
from trainer.tf_config import parse
cluster = json.loads(sys.argv[1])["cluster"]
tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec(cluster), job_name="chief", task_index=0, protocol="grpc")
tf.config.list_logical_devices()  # which connects
for pid in sys.argv[3:]:
    os.kill(int(pid), signal.SIGSTOP)
missed = servers.stop_all(parse(sys.argv[1]), sys.argv[2])
print(*missed, flush=True)
os._exit(len(missed))
"""


pytestmark = pytest.mark.slow


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[servers_here.Servers]:
    for key, value in servers_here.ENVIRONMENT.items():  # which sets it for good: here it is put back
        monkeypatch.setenv(key, value)
    with servers_here.servers(str(tmp_path), ps=1, workers=SERVERS - 1) as started:
        yield started


def dismissed(here: servers_here.Servers, *hang: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CHIEF, here.tf_config, here.scratch, *map(str, hang)]
    return subprocess.run(command, cwd=servers_here.ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=90, check=False)


def test_a_server_that_hangs_is_named_and_keeps_neither_the_chief_nor_the_others(here: servers_here.Servers) -> None:
    hanging = here.processes.pop("worker-0")
    try:
        done = dismissed(here, hanging.pid)
        assert (done.returncode, done.stdout) == (1, "worker-0\n"), done.stderr[-2000:]
        assert {name: process.wait(timeout=15) for name, process in here.processes.items()} == dict.fromkeys(here.processes, 0)
    finally:
        hanging.kill()
        hanging.wait()


def test_a_chief_that_leaves_at_once_has_told_every_server(here: servers_here.Servers) -> None:
    done = dismissed(here)
    assert done.returncode == 0, done.stderr[-2000:]
    assert {name: process.wait(timeout=15) for name, process in here.processes.items()} == dict.fromkeys(here.processes, 0)
