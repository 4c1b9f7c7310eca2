"""The nodes of a cluster, which some tests power off, cut off, taint, and give GPUs."""

import functools
import json
import os
import subprocess
from dataclasses import dataclass

import pytest

from tests.e2e.kubernetes.cluster import kubectl, until

# A label of nodes that are set apart for these tests, and the key of the taint that keeps all others off them.
APART = "tf-launcher/apart"


@dataclass(frozen=True)
class Nodes:
    """Nodes that a test may change. `apart` says that nobody else's pods are on them."""

    names: tuple[str, ...]
    apart: bool

    def spec(self, options: str = "") -> str:
        """Return the section `kubernetes` of a spec, as a line, by which its pods are on these nodes; `options` are others of it."""
        here = f"node_selector: {{{APART}: ''}}, tolerations: [{{key: {APART}, operator: Exists}}]"
        return f"kubernetes: {{{', '.join(filter(None, (options, here if self.apart else '')))}}}\n"


def apart() -> tuple[str, ...]:
    """Return the nodes that are set apart, by their label and taint, for tests that change nodes: those that KUBE_APART names."""
    return tuple(os.environ.get("KUBE_APART", "").split())


@functools.cache
def changeable() -> Nodes:
    """Return the nodes that are set apart for tests that change nodes; where there are none, all."""
    if names := apart():
        return Nodes(names, apart=True)
    listed = kubectl("get", "nodes", "-o", "name").stdout.split()
    return Nodes(tuple(name.partition("/")[2] for name in listed), apart=False)


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
