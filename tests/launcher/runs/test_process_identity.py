"""Identities of processes, and sessions that are killed as a whole."""

import dataclasses
import os
import subprocess
import sys
import time

from launcher.runs import process_identity
from tests.waiting import until

SLEEP = ["sleep", "3600"]


def test_a_process_is_identified_until_it_ends_and_not_only_by_its_number() -> None:
    child = subprocess.Popen(SLEEP)
    try:
        identity = process_identity.identify(child.pid)
        assert identity is not None
        assert process_identity.alive(identity)
        assert not process_identity.alive(dataclasses.replace(identity, born="another boot:17"))
    finally:
        child.kill()
    # Dead, though it is not reaped yet.
    until("it to be known as dead", lambda: not process_identity.alive(identity), seen=lambda: process_identity.identify(child.pid))
    child.wait()
    assert process_identity.identify(child.pid) is None


def test_a_session_is_killed_with_children_in_groups_of_their_own() -> None:
    program = f"import subprocess, time; p = subprocess.Popen({SLEEP!r}, process_group=0); print(p.pid, flush=True); time.sleep(3600)"
    leader = subprocess.Popen([sys.executable, "-c", program], start_new_session=True, stdout=subprocess.PIPE, text=True)
    assert leader.stdout is not None
    grandchild = int(leader.stdout.readline())
    assert set(process_identity.session_members(leader.pid)) == {leader.pid, grandchild}
    process_identity.kill_session(leader.pid)
    leader.wait(5)
    leader.stdout.close()
    assert process_identity.session_members(leader.pid) == []
    assert process_identity.identify(grandchild) is None


def test_a_process_of_a_run_is_recognized_by_its_environment() -> None:
    child = subprocess.Popen(SLEEP, env={**os.environ, "RUN_DIR": "/runs/one"})
    try:
        time.sleep(0.05)
        assert process_identity.started_for(child.pid, run_dir="/runs/one")
        assert not process_identity.started_for(child.pid, run_dir="/runs/on") or sys.platform != "linux"
    finally:
        child.kill()
        child.wait(5)


def test_sending_a_signal_to_no_process_returns_false() -> None:
    child = subprocess.Popen(["true"])
    child.wait(5)
    assert not process_identity.send(child.pid, 15)
