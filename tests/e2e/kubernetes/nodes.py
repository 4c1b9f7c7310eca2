"""The nodes of a cluster, which some tests power off, cut off, taint, and give GPUs."""

import contextlib
import fcntl
import functools
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.kubernetes.cluster import kubectl, until

# A label of nodes that are set apart for these tests, whose value is the first of their group, and the key of the taint that keeps all others off.
APART = "tf-launcher/apart"
_LONGEST_WAIT = 900  # seconds, for a group


@dataclass(frozen=True)
class Nodes:
    """Nodes that a test may change. `apart` says that nobody else's pods are on them."""

    names: tuple[str, ...]
    apart: bool

    def spec(self, options: str = "") -> str:
        """Return the section `kubernetes` of a spec, as a line, by which its pods are on these nodes; `options` are others of it."""
        here = f"node_selector: {{{APART}: {self.names[0]}}}, tolerations: [{{key: {APART}, operator: Exists}}]"
        return f"kubernetes: {{{', '.join(filter(None, (options, here if self.apart else '')))}}}\n"


_held: list[Nodes] = []  # what the module that runs in this process has to itself


def apart() -> tuple[Nodes, ...]:
    """Return the groups of nodes that KUBE_APART names, a comma between two: set apart, by label and taint, for tests that change nodes."""
    groups = (group.split() for group in os.environ.get("KUBE_APART", "").split(","))
    return tuple(Nodes(tuple(names), apart=True) for names in groups if names)


@contextlib.contextmanager
def held(directory: Path) -> Iterator[None]:
    """Have a group to itself that no other process has, which locks a file in `directory`; wait while there is none."""
    with contextlib.ExitStack() as stack:
        locks = {group: stack.enter_context((directory / f"{group.names[0]}.lock").open("w")) for group in apart()}

        def taken() -> bool:
            for group, file in locks.items():
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _held.append(group)
                    return True
            return False

        until(taken, _LONGEST_WAIT, "nodes that no other module has", apart)
        try:
            yield
        finally:
            _held.pop()


def changeable() -> Nodes:
    """Return the nodes that this module has to itself; where none are set apart, all."""
    if _held:
        return _held[-1]
    assert not apart(), "a module that changes nodes is marked changes_nodes"
    return Nodes(_all(), apart=False)


def unchanged() -> str:
    """Return a node that takes pods, and that no other module changes meanwhile."""
    others = {name for group in apart() for name in group.names}
    for node in json.loads(kubectl("get", "nodes", "-o", "json").stdout)["items"]:
        name, taints = node["metadata"]["name"], node["spec"].get("taints", ())
        if name not in others and all(taint["effect"] == "PreferNoSchedule" for taint in taints):
            return str(name)
    pytest.fail("every node has a taint, or is set apart for tests that change it")


@functools.cache
def _all() -> tuple[str, ...]:
    listed = kubectl("get", "nodes", "-o", "name").stdout.split()
    return tuple(name.partition("/")[2] for name in listed)


def node_tool() -> str:
    """Return the program that changes nodes: powers them off and on, cuts them off, has them offer GPUs; skip where there is none."""
    found = os.environ.get("KUBE_TESTBED")
    if not found:
        pytest.skip("KUBE_TESTBED names no program that changes nodes")
    return found


def power_on(node: str) -> None:
    """Start a node that was powered off, and wait until it is as good as any other: on a busy machine that takes minutes."""
    start = [node_tool(), "node", "on", node]
    told = subprocess.run(start, capture_output=True, text=True, timeout=300, check=False)
    until(lambda: well(node), 240, f"{node} to be well", lambda: told.stdout + told.stderr)
    if told.returncode:  # it has not waited so long, nor done what comes after that
        subprocess.run(start, timeout=300, check=True)


def well(node: str) -> bool:
    """Return whether a node is ready, and the cluster keeps no pod off it."""
    found = json.loads(kubectl("get", "node", node, "-o", "json").stdout)
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in found["status"]["conditions"])
    return ready and not [taint for taint in found["spec"].get("taints", ()) if taint["key"].startswith("node.kubernetes.io/")]
