"""Starts a run's supervisor as a process of its own and waits until it has started the tasks."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from io import FileIO
from typing import Any

from launcher.errors import LauncherError, StartInterruptedError, UsageError
from launcher.files import json_object, write_json
from launcher.plan.machine import search_path, source_directory
from launcher.plan.models import Plan
from launcher.plan.plan_json import to_document
from launcher.runs import locks, process_identity
from launcher.runs.paths import RunPaths
from launcher.spec.role_programs import sets_variables

# Another verb may be checking the lock at this moment, or a supervisor may be about to exit.
_LOCK_TIMEOUT = 3.0
_START_TIMEOUT = 60.0
_POLL_INTERVAL = 0.1


def lock(paths: RunPaths) -> int:
    """Create the run's directories and return a file descriptor that holds its lock. Raises UsageError if the run is running, and OSError."""
    paths.tasks.mkdir(parents=True, exist_ok=True)
    fd = locks.acquire(paths.lock, timeout=_LOCK_TIMEOUT)
    if fd is None:
        raise UsageError(
            f"the run {paths.name} is already running",
            f"look at it with `launcher status {paths.name}`, stop it with `launcher down {paths.name}`, or give yours another name",
        )
    return fd


def start(
    paths: RunPaths,
    plan: Plan,
    spec: dict[str, Any],
    *,
    lock_fd: int,
    is_cancelled: Callable[[], bool] | None,
    supervisor: str,
    timeout: float = _START_TIMEOUT,
) -> int | None:
    """Run the module `supervisor`, and wait at most `timeout` seconds until it has started the tasks.

    Returns the write end of its lifeline: the run stops when that end is closed, at the latest when this process dies. None without
    `is_cancelled`: then the run is in the background. Once `is_cancelled` returns True, the supervisor is asked to stop.
    Raises LauncherError if a task could not be started, StartInterruptedError if the supervisor was asked to stop first, here or elsewhere, and
    OSError if files cannot be written.
    """
    # spec.json is the spec of the run's last start: it is replaced once this start has succeeded.
    new_spec = paths.spec.with_suffix(".new")
    private = sets_variables(spec)
    write_json(new_spec, spec, private=private)
    write_json(paths.plan, to_document(plan), private=private)
    with contextlib.ExitStack() as opened:
        ready, child_ready = _pipe(opened)
        child_lifeline, lifeline = (None, None) if is_cancelled is None else _pipe(opened)
        command = [sys.executable, "-P", "-m", supervisor, str(paths.run_dir)]
        command += ["--ready-fd", str(child_ready.fileno()), "--lock-fd", str(lock_fd)]
        passed = [child_ready.fileno(), lock_fd]
        if child_lifeline is not None:
            command += ["--lifeline-fd", str(child_lifeline.fileno())]
            passed.append(child_lifeline.fileno())
        log = opened.enter_context(paths.supervisor_log.open("ab"))
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=_environment(),
            start_new_session=True,
            pass_fds=passed,
        )
        child_ready.close()
        try:
            answer = _read_answer(ready, timeout, process.pid, is_cancelled)
        except BaseException:
            # Ctrl-C in `up --detach`: nobody waits for this start, so the supervisor ends it, or stops the run.
            process_identity.send(process.pid, signal.SIGTERM)
            process.returncode = 0  # as below: it ends by itself
            raise
        if answer is None:
            # Kill the processes that it has started, too: Docker Compose would continue without its caller.
            process_identity.kill_session(process.pid)
            process.wait()
            if process.returncode == -signal.SIGTERM:  # it had no handler yet, so it had started nothing
                raise StartInterruptedError(paths.name)
            raise LauncherError(
                f"the supervisor of {paths.name} did not start within {timeout:g} s or ended at once",
                f"read {paths.supervisor_log}",
            )
        if answer:
            process.wait()
            if answer["interrupted"]:
                raise StartInterruptedError(paths.name)
            raise LauncherError(answer["message"], answer["remedy"])
        new_spec.replace(paths.spec)
        process.returncode = 0  # it outlives this object on purpose: no warning that it still runs
        return None if lifeline is None else os.dup(lifeline.fileno())


def _pipe(opened: contextlib.ExitStack) -> tuple[FileIO, FileIO]:
    reading, writing = os.pipe()
    return opened.enter_context(FileIO(reading, "rb")), opened.enter_context(FileIO(writing, "wb"))


def _environment() -> dict[str, str]:
    source = source_directory()
    return os.environ | ({"PYTHONPATH": search_path(os.environ.get("PYTHONPATH"), source)} if source else {})


def _read_answer(ready: FileIO, timeout: float, pid: int, is_cancelled: Callable[[], bool] | None) -> dict[str, Any] | None:
    """Return the supervisor's answer: empty if it has started, else the error; None if there is none in time.

    Ask the supervisor, process `pid`, to stop once `is_cancelled` returns True.
    """
    deadline = time.monotonic() + timeout
    answer = b""
    while not answer.endswith(b"\n") and time.monotonic() < deadline:
        if is_cancelled is not None and is_cancelled():
            process_identity.send(pid, signal.SIGTERM)
            is_cancelled = None
        if not select.select([ready], [], [], min(_POLL_INTERVAL, max(0, deadline - time.monotonic())))[0]:
            continue
        part = ready.read(4096)
        if not part:
            break
        answer += part
    return json_object(answer)
