"""Nodes of the cluster that tests power off, cut off, taint, or give GPUs, and groups of them that are set apart for one module at a time."""

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

# The label of nodes that are set apart for these tests (its value is the group's first node), and the key of the taint that keeps other pods off.
APART = "tf-launcher/apart"
_LONGEST_WAIT = 900  # seconds, for a group


@dataclass(frozen=True)
class Nodes:
    """Nodes that a test may change. `apart` says that only this test's pods are on them."""

    names: tuple[str, ...]
    apart: bool

    def spec(self, options: str = "") -> str:
        """Return the section `kubernetes` of a spec, as a line, that places its pods on these nodes; `options` are further options."""
        selector = f"node_selector: {{{APART}: {self.names[0]}}}, tolerations: [{{key: {APART}, operator: Exists}}]"
        return f"kubernetes: {{{', '.join(filter(None, (options, selector if self.apart else '')))}}}\n"


_reserved: list[Nodes] = []  # the group of the module that runs in this process


def node_groups() -> tuple[Nodes, ...]:
    """Return the groups of nodes that KUBE_APART names, separated by commas: set apart, by label and taint, for tests that change nodes."""
    groups = (group.split() for group in os.environ.get("KUBE_APART", "").split(","))
    return tuple(Nodes(tuple(names), apart=True) for names in groups if names)


@contextlib.contextmanager
def reserved(directory: Path) -> Iterator[None]:
    """Reserve a group of nodes for this process, by a lock on a file in `directory`; wait while no group is free."""
    with contextlib.ExitStack() as stack:
        locks = {group: stack.enter_context((directory / f"{group.names[0]}.lock").open("w")) for group in node_groups()}

        def reserve() -> bool:
            for group, file in locks.items():
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _reserved.append(group)
                    return True
            return False

        until(reserve, _LONGEST_WAIT, "a group of nodes that no other module has reserved", node_groups)
        try:
            yield
        finally:
            _reserved.pop()


def reserved_nodes() -> Nodes:
    """Return the nodes that this module has reserved, or all nodes if none are set apart."""
    if _reserved:
        return _reserved[-1]
    assert not node_groups(), "a module that changes nodes is marked changes_nodes"
    return Nodes(_all(), apart=False)


def stable_node() -> str:
    """Return a schedulable node that no other module changes."""
    others = {name for group in node_groups() for name in group.names}
    for node in json.loads(kubectl("get", "nodes", "-o", "json").stdout)["items"]:
        name, taints = node["metadata"]["name"], node["spec"].get("taints", ())
        if name not in others and all(taint["effect"] == "PreferNoSchedule" for taint in taints):
            return str(name)
    pytest.fail("every node has a taint, or is set apart for tests that change it")


@functools.cache
def _all() -> tuple[str, ...]:
    names = kubectl("get", "nodes", "-o", "name").stdout.split()
    return tuple(name.partition("/")[2] for name in names)


def node_tool() -> str:
    """Return the program that powers nodes off and on, cuts them off, and lets them offer GPUs; skip if there is none."""
    program = os.environ.get("KUBE_TESTBED")
    if not program:
        pytest.skip("KUBE_TESTBED names no program that changes nodes")
    return program


def power_on(node: str) -> None:
    """Start a node that was powered off, and wait until it is usable: on a busy machine that takes minutes."""
    start = [node_tool(), "node", "on", node]
    result = subprocess.run(start, capture_output=True, text=True, timeout=300, check=False)
    until(lambda: is_usable(node), 240, f"{node} to be usable", lambda: result.stdout + result.stderr)
    if result.returncode:  # it gave up before the node was ready, and did not take its last steps
        subprocess.run(start, timeout=300, check=True)


def is_usable(node: str) -> bool:
    """Return whether a node is ready, and the cluster keeps no pod off it."""
    described = json.loads(kubectl("get", "node", node, "-o", "json").stdout)
    ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in described["status"]["conditions"])
    return ready and not [taint for taint in described["spec"].get("taints", ()) if taint["key"].startswith("node.kubernetes.io/")]
