"""Counts what tasks send each other: remote procedure calls, and bytes on the loopback device, for each step.

    python -m benchmarks.messages [--only ps,sync] [--json | --markdown] [--write docs/performance.md]

Each case runs twice, with SHORT and LONG steps; the difference, divided by the steps, is the cost of a step: start and end cancel out. Calls are
counted in gRPC's own trace (GRPC_TRACE=api), without those of TensorFlow's streams. Bytes are those of
the device, with TCP and IP headers. If `unshare` is permitted, the runs have a network namespace of their own, so that
no other traffic is counted.
"""

import argparse
import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import ours, report, task
from benchmarks.measuring import ENVIRONMENT

SHORT, LONG = 100, 300
STEPS_PER_CALL = 50  # fixed, so that both runs have as many calls a step
_CALL = "SEND_CLOSE_FROM_CLIENT"  # one for each call, on the side that makes it
_IN_NAMESPACE = "BENCH_OWN_NETWORK"
TRACE = {"GRPC_TRACE": "api", "GRPC_VERBOSITY": "DEBUG", "TF_CPP_MIN_LOG_LEVEL": "0"}
CASES = {
    "ps": "parameter_server, asynchronous",
    "sync": "parameter_server, synchronous (a round of 2)",
    "allreduce": "multi_worker_mirrored",
}
WIRES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Sent:
    """Bytes and packets that a run, or a step, of one case sent."""

    calls: dict[str, float]  # by the role that makes them
    bytes: float
    packets: float


def sent(case: str, wire: str, steps: int) -> Sent:
    """Run a case and return what it sent from its start to its end. Raises SystemExit if the run fails."""
    calls: Counter[str] = Counter()

    def count(line: str) -> None:
        if _CALL in line:
            calls[str(json.loads(line)["task"]).rpartition("-")[0] or "chief"] += 1

    spec = ours.spec(ours.CASES[case], steps, task.WORKERS, wire)
    spec["train"] = {**ours.CASES[case].train, **dict(_train(spec)), "steps_per_execution": STEPS_PER_CALL}
    before = loopback()
    ours.run(spec, lambda _: None, count)
    after = loopback()
    return Sent(dict(calls), after[0] - before[0], after[1] - before[1])


def _train(spec: dict[str, object]) -> dict[str, object]:
    train = spec["train"]
    return train if isinstance(train, dict) else {}


def a_step(case: str, wire: str) -> Sent:
    """Return what one step of a case sends."""
    short, long = (sent(case, wire, steps) for steps in (SHORT, LONG))
    steps = LONG - SHORT
    roles = sorted(long.calls)
    calls = {role: round((long.calls[role] - short.calls.get(role, 0)) / steps, 2) for role in roles}
    return Sent(calls, round((long.bytes - short.bytes) / steps), round((long.packets - short.packets) / steps, 1))


def loopback() -> tuple[int, int]:
    """Return the bytes and packets that the loopback device of this network namespace has sent so far."""
    for line in Path("/proc/net/dev").read_text(encoding="utf-8").splitlines():
        name, colon, numbers = line.partition(":")
        if colon and name.strip() == "lo":
            columns = [int(number) for number in numbers.split()]
            return columns[8], columns[9]
    raise OSError("/proc/net/dev lists no loopback device (lo); run this on Linux, in a network that has one")


def _enter_namespace() -> bool:
    """Re-execute in a network namespace of our own; return whether this process is in one."""
    if os.environ.get(_IN_NAMESPACE):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            up = struct.pack("16sh", b"lo", 0x41)  # IFF_UP | IFF_RUNNING
            fcntl.ioctl(control, 0x8914, up)  # SIOCSIFFLAGS
        return True
    unshare = shutil.which("unshare")
    apart = ["--net", "--map-root-user"]
    if unshare and not subprocess.run([unshare, *apart, "true"], capture_output=True, check=False).returncode:
        command = [unshare, *apart, sys.executable, "-m", "benchmarks.messages", *sys.argv[1:]]
        os.execve(unshare, command, {**os.environ, _IN_NAMESPACE: "1"})  # noqa: S606 - no shell is meant
    print("no network namespace of its own (unshare --net): other traffic of this machine is counted, too", file=sys.stderr)
    return False


def sheet(measured: dict[tuple[str, str], Sent]) -> report.Sheet:
    """Return the table."""
    rows = [
        (
            CASES[case],
            wire,
            f"{sum(row.calls.values()):.1f}",
            ", ".join(f"{role} {number:.1f}" for role, number in row.calls.items() if number >= 0.05),
            f"{row.bytes / 1000:,.0f}",
            f"{row.packets:,.0f}",
        )
        for (case, wire), row in measured.items()
    ]
    columns = ("strategy, 2 workers", "wire", "calls", "made by", "kB", "packets")
    return report.Sheet("Sent in one step, MLP 784-100-10 (a gradient of 318 kB)", columns, rows, texts=2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CASES), help="cases, separated by commas")
    parser.add_argument("--wire", default=",".join(WIRES), help="data types on the wire, separated by commas")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object")
    form.add_argument("--markdown", action="store_true", help="print the table in Markdown")
    parser.add_argument("--write", type=Path, help="also put it into this file, between <!-- messages --> and <!-- /messages -->")
    options = parser.parse_args(arguments)
    cases, wires = options.only.split(","), options.wire.split(",")
    if unknown := [*(set(cases) - CASES.keys()), *(set(wires) - set(WIRES))]:
        parser.error(f"no such case or wire: {', '.join(unknown)}; there are {', '.join(CASES)} and {', '.join(WIRES)}")
    isolated = _enter_namespace()
    os.environ |= {**ENVIRONMENT, **TRACE}
    measured = {(case, wire): a_step(case, wire) for case in cases for wire in wires}
    facts = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "load_before": 0.0 if isolated else round(os.getloadavg()[0], 1)}
    table = sheet(measured)
    if options.as_json:
        print(json.dumps({f"{case} {wire}": asdict(row) for (case, wire), row in measured.items()}, indent=2))
    elif options.markdown:
        print(report.markdown([table], facts))
    else:
        report.show([table], facts, terminal=sys.stdout.isatty())
    if options.write:
        report.write(options.write, "messages", report.markdown([table], facts))


if __name__ == "__main__":
    main()
