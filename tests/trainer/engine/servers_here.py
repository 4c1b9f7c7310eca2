"""Real ps and worker processes on this machine for a chief in this process."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer import parent_death

ROOT = Path(__file__).resolve().parents[3]

ENVIRONMENT = {
    "TF_GRPC_REUSE_PORT": "1",
    "GRPC_FAIL_FAST": "use_caller",
    "TF_NUM_INTRAOP_THREADS": "1",
    "KERAS_BACKEND": "tensorflow",
    "TF_ENABLE_ASYNC_WAIT_FOR_REMOTE_FUNCTION": "false",  # as in trainer/task.py
}


@dataclass
class Servers:
    """A cluster's ps and worker processes by task name, and the chief's TF_CONFIG."""

    tf_config: str
    scratch: str
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def start(self, role: str, index: int) -> None:
        """Start a task, or restart one that has ended."""
        cluster = json.loads(self.tf_config)["cluster"]
        settings: dict[str, Any] = {"run": "drive", "strategy": "parameter_server", "run_dir": self.scratch, "scratch_dir": self.scratch}
        settings["train"] = {"workload": "mnist_mlp"}
        config = json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})
        environment = {**os.environ, **parent_death.child_environment(), "TF_CONFIG": config, "TRAINER_SETTINGS": json.dumps(settings)}
        self.processes[f"{role}-{index}"] = subprocess.Popen(
            [sys.executable, "-m", "trainer.task"], env=environment, cwd=ROOT, stdout=subprocess.DEVNULL
        )


@contextmanager
def servers(scratch: str, *, ps: int, workers: int) -> Iterator[Servers]:
    """Start servers on reserved ports; kill them at the end. Sets the environment variables that they and the chief need."""
    os.environ |= ENVIRONMENT
    sockets, addresses = free_ports(1 + ps + workers)
    by_role = {"chief": addresses[:1], "ps": addresses[1 : 1 + ps], "worker": addresses[1 + ps :]}
    cluster = {role: members for role, members in by_role.items() if members}
    running = Servers(json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}}), scratch)
    try:
        for role, count in (("ps", ps), ("worker", workers)):
            for index in range(count):
                running.start(role, index)
        yield running
    finally:
        for process in running.processes.values():
            process.kill()
            process.wait()
        for reserved in sockets:
            reserved.close()


def free_ports(count: int) -> tuple[list[socket.socket], list[str]]:
    """Return `count` addresses on this machine, and the sockets that reserve them for processes with TF_GRPC_REUSE_PORT."""
    sockets = []
    for _ in range(count):
        reserved = socket.socket()
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("127.0.0.1", 0))
        sockets.append(reserved)
    return sockets, [f"127.0.0.1:{reserved.getsockname()[1]}" for reserved in sockets]
