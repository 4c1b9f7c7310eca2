"""Reads a run's logs for TensorBoard back: from the event files, and through TensorBoard's own HTTP interface."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import tensorflow as tf
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from tests.processes import end


@dataclass(frozen=True)
class Summary:
    """One summary value of an event file: `plugin` is its kind, `value` its tensor."""

    plugin: str
    tag: str
    step: int
    value: Any


@dataclass(frozen=True)
class Events:
    """The content of the event files of one directory."""

    summaries: tuple[Summary, ...]
    graphs: tuple[bytes, ...]

    def tags(self, plugin: str) -> set[str]:
        """Return the tags of one kind: `scalars`, `images`, `histograms`, ..."""
        return {summary.tag for summary in self.summaries if summary.plugin == plugin}

    def values(self, tag: str) -> list[tuple[int, Any]]:
        """Return (step, value) of each summary under `tag`, in the order in which they were written."""
        return [(summary.step, summary.value) for summary in self.summaries if summary.tag == tag]

    def scalars(self, tag: str) -> list[tuple[int, float]]:
        """Return (step, number) of each scalar under `tag`."""
        return [(step, float(value)) for step, value in self.values(tag)]

    def graph_nodes(self) -> list[tuple[str, str]]:
        """Return (name, operation) of each node of the last graph, its functions' nodes included."""
        graph = tf.compat.v1.GraphDef.FromString(self.graphs[-1])
        bodies = [graph.node, *(function.node_def for function in graph.library.function)]
        return [(node.name, node.op) for body in bodies for node in body]


def read_events(logdir: Path) -> Events:
    """Return the content of the event files directly in `logdir`, oldest file first."""
    summaries: list[Summary] = []
    graphs: list[bytes] = []
    plugins: dict[str, str] = {}
    for path in sorted(logdir.glob("events.out.tfevents.*")):
        # A profile's marker file has the same prefix and holds no summary.
        for event in EventFileLoader(str(path)).Load():
            if event.HasField("graph_def"):
                graphs.append(event.graph_def)
            for value in event.summary.value:
                # The kind is written with a tag's first value; later ones may leave it out.
                plugins.setdefault(value.tag, value.metadata.plugin_data.plugin_name)
                summaries.append(Summary(plugins[value.tag], value.tag, event.step, tf.make_ndarray(value.tensor)))
    return Events(tuple(summaries), tuple(graphs))


def profiles(logdir: Path) -> list[Path]:
    """Return the recorded profiles where TensorBoard's profile plugin looks for them."""
    return sorted(logdir.glob("plugins/profile/*/*.xplane.pb"))


class TensorBoard:
    """A running TensorBoard; each request to it has a deadline."""

    def __init__(self, address: str) -> None:
        self._address = address

    def get(self, path: str, **query: str) -> bytes:
        """Return TensorBoard's response to `data/<path>`. Raises HTTPError if that is an error."""
        address = f"{self._address}/data/{path}" + (f"?{urlencode(query)}" if query else "")
        with urlopen(address, timeout=20) as response:
            content: bytes = response.read()
        return content

    def json(self, path: str, **query: str) -> Any:
        """Return the response to `get` as JSON."""
        return json.loads(self.get(path, **query))

    def wait_for(self, path: str, expected: set[str], seconds: float = 60) -> Any:
        """Return `json(path)` as soon as it, a mapping or a list, contains all of `expected`; TensorBoard loads a log in parts."""
        return self._until(lambda response: expected <= set(response), path, f"contain {sorted(expected)}", seconds)

    def wait_for_plugins(self, expected: set[str], seconds: float = 60) -> None:
        """Return as soon as TensorBoard shows the tabs of these plugins: they have data."""
        self._until(
            lambda response: all(response[plugin]["enabled"] for plugin in expected),
            "plugins_listing",
            f"enable {sorted(expected)}",
            seconds,
        )

    def _until(self, ready: Callable[[Any], bool], path: str, action: str, seconds: float) -> Any:
        deadline = time.monotonic() + seconds
        response: Any = None
        while time.monotonic() < deadline:
            try:
                response = self.json(path)
                if ready(response):
                    return response
            except HTTPError as error:
                response = error
            time.sleep(0.3)
        raise TimeoutError(f"TensorBoard's {path} did not {action} in {seconds} s; the last response was {response}")


@contextmanager
def tensorboard(logdir: Path, log: Path, seconds: float = 60) -> Iterator[TensorBoard]:
    """Serve `logdir` on a free port while the block runs; `log` receives its output.

    Raises TimeoutError if it does not serve within that many seconds.
    """
    command = [sys.executable, "-m", "trainer.tensorboard", "--logdir", str(logdir), "--port", "0", "--load_fast", "false"]
    with log.open("w") as output:
        process = subprocess.Popen([*command, "--reload_interval", "2"], stdout=output, stderr=subprocess.STDOUT)
    try:
        yield TensorBoard(_address(process, log, seconds))
    finally:
        end(process, 10)


def _address(process: "subprocess.Popen[bytes]", log: Path, seconds: float) -> str:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        if match := re.search(r"http://localhost:\d+", log.read_text()):
            return match.group()
        time.sleep(0.2)
    raise TimeoutError(f"TensorBoard did not serve within {seconds} s:\n{log.read_text()}")
