"""Checks the free memory for tables, on parameter servers or in this process, before they are created."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import keras
import tensorflow as tf

from trainer.engine.byte_sizes import byte_size
from trainer.engine.embeddings import layers
from trainer.engine.parameter_server.state import device
from trainer.workloads.errors import WorkloadError

_USABLE = 0.9  # the fraction of the free memory that tables may take: steps, messages and TensorFlow need some
# Files of a Linux container: its limit of memory, its usage, and statistics with how much of that is page cache; of cgroup 2, then of cgroup 1.
_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory/memory.stat"),
)
_MOUNTS, _IN_MEMORY = "/proc/self/mountinfo", {"tmpfs", "ramfs"}
_MEMINFO, _BOOT_ID, _HOSTNAME = "/proc/meminfo", "/proc/sys/kernel/random/boot_id", "/proc/sys/kernel/hostname"
_FILES = (*_LIMITS[0], *_LIMITS[1], _MEMINFO, _BOOT_ID, _HOSTNAME)


def check(wanted: int, servers: int) -> None:
    """Raise WorkloadError if one of `servers` has not `wanted` bytes of memory for its tables; the message says how many servers would do."""
    machines: dict[str, list[int]] = {}
    free_of = [_free(lines) for lines in _lines_of_servers(servers)]
    for server, (_, machine) in enumerate(free_of):
        machines.setdefault(machine, []).append(server)
    for server, (free, machine) in enumerate(free_of):
        usable, sharing = int(free * _USABLE), len(machines[machine])
        if wanted > usable // sharing:
            needed = -(-wanted * servers // max(1, usable))
            shared, apart = (f", which {sharing} ps share", ", each on a machine of its own") if sharing > 1 else ("", "")
            raise WorkloadError(
                f"the embedding layers take {byte_size(wanted)} on each of {servers} ps, and ps-{server} has {byte_size(free)} free{shared}; "
                f"{needed} ps of this size would do{apart}, or give each more memory"
            )


def evaluator_check(copies: int) -> Callable[[Sequence[keras.layers.Embedding]], None]:
    """Return a check that raises WorkloadError if the memory that is free now is too little for `copies` of each layer's matrix."""
    free, _ = _free({path: _local_lines(path) for path in _FILES})

    def check(large_layers: Sequence[keras.layers.Embedding]) -> None:
        wanted = copies * sum(layers.bytes_of(layer) for layer in large_layers)
        if wanted > free * _USABLE:
            raise WorkloadError(
                f"the evaluator takes about {byte_size(wanted)} for embedding layers, which it loads whole ({layers.described(large_layers)}), and has "
                f"{byte_size(free)} free; leave the evaluator role out: the chief evaluates through the same look-ups as it trains; or give it more "
                "memory"
            )

    return check


def is_memory(directory: str) -> bool:
    """Return whether files in a directory take this container's memory: its file system is in memory, as in a hardened container of Docker's."""
    number = Path(directory).stat().st_dev
    mounts = (line.partition(" - ") for line in _local_lines(_MOUNTS))  # field 3: device; first one after " - ": type
    return any(
        before.split()[2] == f"{os.major(number)}:{os.minor(number)}" and after.split()[0] in _IN_MEMORY for before, _, after in mounts
    )


def _free(lines: Mapping[str, Sequence[str]]) -> tuple[int, str]:
    """Return the free bytes by the `lines` of `_FILES`, and an id of the machine or container that has them."""

    def first(path: str) -> str:
        return next(iter(lines[path]), "")

    free_of_limits: list[int] = []
    for limit, used, stat in _LIMITS:
        numbers = [first(name) for name in (limit, used)]
        if all(number.isdigit() for number in numbers):
            cached = [int(line.split()[1]) for line in lines[stat] if line.startswith(("inactive_file ", "total_inactive_file "))]
            free_of_limits.append(int(numbers[0]) - int(numbers[1]) + max(cached, default=0))
    machine = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines[_MEMINFO] if line.endswith("kB")}
    total = machine.get("MemAvailable", 2**62)
    if free_of_limits and min(free_of_limits) < total:
        return max(0, min(free_of_limits)), first(_BOOT_ID) + first(_HOSTNAME)
    return total, first(_BOOT_ID)


def _local_lines(path: str) -> list[str]:
    """Return the lines of a file of this machine, none if there is no such file."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _lines_of_servers(servers: int) -> list[dict[str, list[str]]]:
    """Return the lines of each of `_FILES` on each server, none if there is no such file.

    Files of /proc have no size, so that `read_file` is of no use. One function reads all files on all servers: each function that
    TensorFlow makes costs a server some hundredths of a second.
    """

    def lines(path: tf.Tensor) -> tf.data.Dataset:
        return tf.data.TextLineDataset(tf.io.matching_files(path)).map(lambda line: tf.strings.join([path, line], "\n"))

    def read() -> tf.Tensor:
        paths_and_lines = tf.data.Dataset.from_tensor_slices(list(_FILES)).flat_map(lines)
        return paths_and_lines.reduce(tf.constant(""), lambda before, line: tf.strings.join([before, line], "\n"))

    read_here = tf.function(read, autograph=False).get_concrete_function()

    @tf.function(autograph=False)
    def read_everywhere() -> list[tf.Tensor]:
        texts = []
        for server in range(servers):
            with tf.device(device(server)):
                texts.append(read_here())
        return texts

    result: list[dict[str, list[str]]] = []
    for text in read_everywhere():
        _, *parts = text.numpy().decode(errors="replace").split("\n")
        result.append({path: [line for name, line in zip(parts[::2], parts[1::2], strict=True) if name == path] for path in _FILES})
    return result
