"""A user's program for the tests: its arguments choose what it does, and it reports events as the trainer does."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

TASK = os.environ.get("RUN_TASK", "chief")


def report(kind: str, **fields: object) -> None:
    event = json.dumps({"event": kind, "time": time.time(), "task": TASK, **fields}, separators=(",", ":"))
    os.write(int(os.environ["TRAINER_EVENTS_FD"]), event.encode() + b"\n")


def steps(count: int, seconds: float) -> None:
    """Report `count` steps, `seconds` apart."""
    for step in range(1, count + 1):
        time.sleep(seconds)
        report("progress", step=step, steps=count, loss=1 / step, metrics={"accuracy": step / count}, examples_per_second=1000.0)
    report("checkpoint", step=count, path=f"{os.environ['RUN_DIR']}/checkpoints/ckpt-{count}", seconds=0.1)
    report("done", step=count, seconds=count * seconds, metrics={"accuracy": 1.0})


def early() -> None:
    """Report two steps of many, an evaluation after each, and the end before the last step."""
    for step in (1, 2):
        report("progress", step=step, steps=100, loss=1 / step, metrics={"accuracy": 1.0})
        report("evaluated", step=step, metrics={"accuracy": 0.75}, seconds=0.1)
    report("done", step=2, seconds=0.1, metrics={"accuracy": 0.75}, ended_early="accuracy did not improve on 0.75 in 1 evaluations")


def fail() -> NoReturn:
    print("about to fail", flush=True)
    raise ValueError("the data is not there")


def forever(seconds: float = 0) -> NoReturn:
    """Run until SIGTERM, then save for `seconds` and exit 143, as a trainer does."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        del number, frame
        time.sleep(seconds)
        Path(os.environ["RUN_DIR"], "saved").write_text("saved", encoding="utf-8")
        print("saved", flush=True)
        sys.exit(143)

    signal.signal(signal.SIGTERM, stop)
    print("up", flush=True)
    while True:
        time.sleep(1)


def stubborn() -> NoReturn:
    """Ignore SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: print("not now", flush=True))
    print("up", flush=True)
    while True:
        time.sleep(1)


if __name__ == "__main__":
    job, *values = sys.argv[1:]
    if job == "steps":
        steps(int(values[0]), float(values[1]))
    elif job == "coloured":
        print("\x1b[31mred\x1b[0m", flush=True)
    elif job == "slow":
        forever(float(values[0]))
    else:
        {"early": early, "fail": fail, "forever": forever, "stubborn": stubborn}[job]()
