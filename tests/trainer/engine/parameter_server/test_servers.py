"""Servers are notified that the run is done, also by a chief that exits at once; a server that is asked to stop notifies its chief."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf

from tests import forked
from tests.trainer.engine import servers_here
from trainer.engine.parameter_server import servers

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
STOPPING_CHIEF = """
import json, os, signal, sys, time
import tensorflow as tf
from trainer.engine.parameter_server import server_watch, servers
cluster = json.loads(sys.argv[1])["cluster"]
tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec(cluster), job_name="chief", task_index=0, protocol="grpc")
tf.config.list_logical_devices()  # which connects
is_leaving = server_watch.file_check(servers.leaving_file(sys.argv[2], "ps-0"), "/job:ps/replica:0/task:0/device:CPU:0")
before = is_leaving()
# As by systemd, which stops all processes: the parent does not pass SIGTERM on yet, and tells of the stop by SIGURG.
for pid, order in zip(sys.argv[3:], ((signal.SIGURG, signal.SIGTERM), (signal.SIGTERM, signal.SIGURG)), strict=True):
    for number in order:
        os.kill(int(pid), number)
while not is_leaving():
    time.sleep(0.1)
print(before, *servers.notify_saved({"ps-0"}, sys.argv[2]), flush=True)
os._exit(0)
"""


pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[servers_here.Servers]:
    for key, value in servers_here.ENVIRONMENT.items():  # `servers` sets them; monkeypatch restores them
        monkeypatch.setenv(key, value)
    with servers_here.servers(str(tmp_path), ps=1, workers=SERVERS - 1) as started:
        yield started


def run_chief(cluster: servers_here.Servers, *pids: int, program: str = CHIEF) -> subprocess.CompletedProcess[str]:
    (path := Path(cluster.scratch, "chief.py")).write_text(program)
    command = [sys.executable, str(path), cluster.tf_config, cluster.scratch, *map(str, pids)]
    environment = {**os.environ, "PYTHONPATH": str(servers_here.ROOT)}
    return forked.run(command, cwd=servers_here.ROOT, env=environment, preload=forked.TENSORFLOW)


def test_a_server_that_hangs_is_named_and_delays_neither_the_chief_nor_the_others(cluster: servers_here.Servers) -> None:
    hanging = cluster.processes.pop("worker-0")
    try:
        result = run_chief(cluster, hanging.pid)
        assert (result.returncode, result.stdout) == (1, "worker-0\n"), result.stderr[-2000:]
        assert {name: process.wait(timeout=15) for name, process in cluster.processes.items()} == dict.fromkeys(cluster.processes, 0)
    finally:
        hanging.kill()
        hanging.wait()


def test_a_chief_that_exits_at_once_has_notified_every_server(cluster: servers_here.Servers) -> None:
    result = run_chief(cluster)
    assert result.returncode == 0, result.stderr[-2000:]
    assert {name: process.wait(timeout=15) for name, process in cluster.processes.items()} == dict.fromkeys(cluster.processes, 0)


def test_a_server_is_notified_again_if_its_first_operation_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of another server may make it fail."""
    identity, failures = tf.identity, iter([tf.errors.UnavailableError(None, None, "Socket closed")])

    def failing_once(value: tf.Tensor) -> tf.Tensor:
        for failure in failures:
            raise failure
        return identity(value)

    monkeypatch.setattr(tf, "identity", failing_once)
    monkeypatch.setattr(tf, "device", lambda _: contextlib.nullcontext())  # this process replaces the server
    notified: list[str] = []
    servers._notify("ps-0", tmp_path / "ps-0.stop", "done", lambda: notified.append("ps-0"))
    assert (notified, (tmp_path / "ps-0.stop").read_text()) == (["ps-0"], "done")


def test_a_ps_that_is_asked_to_stop_ends_when_its_chief_has_saved_and_a_worker_does_not_wait(cluster: servers_here.Servers) -> None:
    stopping = [cluster.processes.pop(name) for name in ("ps-0", "worker-0")]
    try:
        result = run_chief(cluster, *(process.pid for process in stopping), program=STOPPING_CHIEF)
        assert (result.returncode, result.stdout) == (0, "False\n"), result.stderr[-2000:]
        assert [process.wait(timeout=15) for process in stopping] == [143, 143]
        assert {name: process.poll() for name, process in cluster.processes.items()} == {"worker-1": None}
    finally:
        for process in stopping:
            process.kill()
            process.wait()
