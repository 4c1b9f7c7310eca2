"""Specs of users' programs, in an image of their own."""

from pathlib import Path
from typing import Any

from launcher.images import DEFAULT_IMAGE

UNFINISHED = "3/10 [==>.......] - loss: 0.5"
# The program is killed once in the middle of a progress bar; its parent reports that after the unfinished bar.
KILLED_ONCE = f"os.environ['TRAINER_ATTEMPT'] != '1' or (sys.stdout.write({UNFINISHED!r}), sys.stdout.flush(), os.kill(os.getpid(), 9)); time.sleep(5)"
ROOT = Path(__file__).resolve().parents[3]


def bare(strategy: str, roles: dict[str, Any], code: str, *arguments: str) -> dict[str, Any]:
    """Return the fields of a spec that runs `python` with these arguments in `code`, a directory of this repository."""
    return {
        "strategy": strategy,
        "roles": roles,
        "image": DEFAULT_IMAGE,
        "code": str(ROOT / code),
        "command": ["python", *arguments],
        "limits": {"worker_grace": "1s"},  # a worker in `server.join()` would use all of it
        "storage": {},
    }


# The program of an init container, which writes a file for the task, and of a sidecar, which runs until SIGTERM.
PREPARES = "import os; open('/out/token', 'w').write('prepared ' + os.environ['TOKEN'][::-1])"
RUNS_UNTIL_STOPPED = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(print('it is over', flush=True))); time.sleep(3600)"
