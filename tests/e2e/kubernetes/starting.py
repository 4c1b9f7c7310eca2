"""Specs of programs that go on for as long as a test needs them, and obstacles in the way of a start."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from tests.e2e.kubernetes.cluster import Namespace, until

SLEEP = "command: [python, -c, 'import time; time.sleep(600)']\nlimits: {grace_period: 1s}\n"


def write(file: Path, name: str, image: str, rest: str) -> str:
    """Write a spec and return its path."""
    file.write_text(f"version: 1\nname: {name}\nimage: {image}\nsupervise: false\nstorage: {{}}\n{SLEEP}{rest}")
    return str(file)


def program(code: str) -> str:
    """Return the line of a spec that runs a program which knows its `role`."""
    head = "import json, os, sys, time; role = json.loads(os.environ['TF_CONFIG'])['task']['type']; "
    return f"command: [python, -c, {json.dumps(head + code)}]\n"


# A program that goes on until `let_go`.
HELD = "wait = lambda: [time.sleep(0.1) for _ in range(3000) if not os.path.exists('/tmp/go')]; "


def let_go(namespace: Namespace, run: str) -> None:
    """Let the program of a run's one task end."""
    (pod,) = namespace.pods(run)
    namespace.signal(pod["metadata"]["name"], "/tmp/go")


@contextlib.contextmanager
def held(namespace: Namespace, run: str) -> Iterator[None]:
    """Keep the Jobs of a run that has ended from going for a `with` block: a start waits for that."""
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
    """Let the namespace have no more than that for a `with` block."""
    namespace.kubectl("create", "quota", name, f"--hard={hard}")
    try:
        told = ("get", "quota", name, "-o", "jsonpath={.status.hard}")
        until(lambda: "0" in namespace.kubectl(*told), 30, "the quota to hold", lambda: namespace.kubectl(*told))
        yield
    finally:
        namespace.kubectl("delete", "quota", name)
