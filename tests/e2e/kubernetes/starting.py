"""Specs of programs that run for as long as a test needs them, and conditions that delay or prevent a start."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from tests.e2e.kubernetes.cluster import Namespace, until

SLEEP = "command: [python, -c, 'import time; time.sleep(3600)']\nlimits: {grace_period: 1s}\n"


def write(file: Path, name: str, image: str, fields: str) -> str:
    """Write a spec with these further fields, and return its path."""
    file.write_text(f"version: 1\nname: {name}\nimage: {image}\nsupervise: false\nstorage: {{}}\n{SLEEP}{fields}")
    return str(file)


def program(code: str) -> str:
    """Return the line of a spec that runs a program with a variable `role`."""
    head = "import json, os, sys, time; role = json.loads(os.environ['TF_CONFIG'])['task']['type']; "
    return f"command: [python, -c, {json.dumps(head + code)}]\n"


# Code that defines `wait`, which returns after `release`.
WAIT_FOR_RELEASE = "wait = lambda: [time.sleep(0.1) for _ in range(3000) if not os.path.exists('/tmp/go')]; "


def release(namespace: Namespace, run: str) -> None:
    """End the wait of the program of a run's only task."""
    (pod,) = namespace.pods(run)
    namespace.signal(pod["metadata"]["name"], "/tmp/go")


@contextlib.contextmanager
def deletion_blocked(namespace: Namespace, run: str) -> Iterator[None]:
    """Block the deletion of an ended run's Jobs for a `with` block, by a finalizer: a new start waits for the deletion."""
    names = [f"job/{job['metadata']['name']}" for job in namespace.objects("Job", run)]
    for name in names:
        namespace.kubectl("patch", name, "--type=merge", "-p", '{"metadata":{"finalizers":["tests.example.com/held"]}}')
    try:
        yield
    finally:
        for name in names:
            namespace.kubectl("patch", name, "--type=merge", "-p", '{"metadata":{"finalizers":null}}', check=False)


@contextlib.contextmanager
def quota(namespace: Namespace, name: str, hard: str) -> Iterator[None]:
    """Limit the namespace by a quota for a `with` block."""
    namespace.kubectl("create", "quota", name, f"--hard={hard}")
    try:
        hard_limit = ("get", "quota", name, "-o", "jsonpath={.status.hard}")
        value = f'"{hard.partition("=")[2]}"'
        until(lambda: value in namespace.kubectl(*hard_limit), 30, "the quota to take effect", lambda: namespace.kubectl(*hard_limit))
        yield
    finally:
        namespace.kubectl("delete", "quota", name)
