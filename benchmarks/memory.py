"""Peak memory of a program's processes, by role, polled in /proc while it runs."""

import json
import re
import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

_POLL_INTERVAL = 0.5  # seconds
_PEAK = re.compile(rb"^VmHWM:\s+(\d+) kB", re.MULTILINE)
_OWN = re.compile(rb"^RssAnon:\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True)
class Peak:
    """Megabytes: `resident` with mapped files, which processes share; `own` without them."""

    resident: float
    own: float


class MemoryWatch(threading.Thread):
    """Watches every process whose environment has `marker`, an entry NAME=value, from `start` to `stop`.

    A role is the one of TF_CONFIG, or of BENCH_TASK=role-index; other processes (the launcher, TorchX, Ray) are "others".
    """

    def __init__(self, marker: str) -> None:
        super().__init__(daemon=True)
        self._marker = marker.encode()
        self._stopped = threading.Event()
        self._unrelated: set[str] = set()
        self._tasks: dict[str, str] = {}  # process -> its task
        self._peaks: dict[str, Peak] = {}

    def run(self) -> None:
        """Poll until `stop`."""
        while not self._stopped.wait(_POLL_INTERVAL):
            self._poll()

    def stop(self) -> dict[str, Peak]:
        """Stop, and return the peak of each role: the processes of a task added up, the largest of the role's tasks."""
        self._stopped.set()
        self.join()
        tasks: dict[str, list[Peak]] = defaultdict(list)
        for pid, peak in self._peaks.items():
            tasks[self._tasks[pid]].append(peak)
        roles: dict[str, Peak] = {}
        for name, peaks in sorted(tasks.items()):
            role = name.rpartition("-")[0] or name
            whole = Peak(round(sum(p.resident for p in peaks), 1), round(sum(p.own for p in peaks), 1))
            roles[role] = max(roles.get(role, whole), whole, key=lambda peak: peak.resident)
        return roles

    def _poll(self) -> None:
        for directory in Path("/proc").glob("[0-9]*"):
            pid = directory.name
            if pid in self._unrelated:
                continue
            try:
                environment = (directory / "environ").read_bytes().split(b"\0")
                status = (directory / "status").read_bytes()
            except OSError:  # it has ended, or is another user's
                continue
            if self._marker not in environment:
                self._unrelated.add(pid)
                continue
            peak, own = _PEAK.search(status), _OWN.search(status)
            if peak and own:
                # A process has its task's environment only once it has become the task's program.
                self._tasks[pid] = _task(environment)
                before = self._peaks.get(pid, Peak(0, 0))
                self._peaks[pid] = Peak(max(before.resident, int(peak[1]) / 1000), max(before.own, int(own[1]) / 1000))


def _task(environment: list[bytes]) -> str:
    variables = dict(entry.partition(b"=")[::2] for entry in environment)
    if b"BENCH_TASK" in variables:
        return variables[b"BENCH_TASK"].decode()
    try:
        task = json.loads(variables[b"TF_CONFIG"])["task"]
        return f"{task['type']}-{task['index']}"
    except (KeyError, ValueError):
        return "others"
