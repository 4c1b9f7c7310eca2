"""Messages about a run to people: to a program and a server on loopback, by the supervisor of a real run."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.cli.up import _background_notices
from launcher.spec.models import ClusterSpec
from tests.launcher.cli.conftest import Cli
from tests.waiting import until
from tests.webhook import serving

PLACE = "T0KEN-in-the-path"


def write(tmp_path: Path, command: str, notify: dict[str, Any], **more: Any) -> str:
    """Write a spec whose program is a shell's, and the program that gets the message; return the spec's name."""
    tell = tmp_path / "tell"
    tell.write_text("#!/bin/sh\ncat >> told\n")  # in the directory of the spec
    tell.chmod(0o755)
    document = {"version": 1, "name": "toy", "command": ["sh", "-c", command], "notify": notify}
    document["limits"] = {"max_restarts": 0, "grace_period": "1s"} | more
    (tmp_path / "toy.yaml").write_text(json.dumps(document))
    return "toy.yaml"


def until_status(cli: Cli, words: str) -> None:
    """Wait until `launcher status` has some words."""
    until(f"{words!r} in the status", lambda: words in cli("status", "toy").stdout, seen=lambda: cli("status", "toy").stdout, every=0.05)


def told(tmp_path: Path) -> list[dict[str, Any]]:
    file = tmp_path / "told"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_program_is_told_once_that_a_run_has_succeeded_by_any_number_of_watchers(cli: Cli, tmp_path: Path) -> None:
    done = cli("up", write(tmp_path, "exit 0", {"command": ["./tell"]}))
    assert done.returncode == 0, done.stderr
    until("the message", lambda: told(tmp_path), seen=lambda: cli("status", "toy").stdout)
    assert cli("wait", "toy").returncode == 0
    assert "is complete" in cli("up", "toy.yaml").stdout
    until_status(cli, "sent by command at")
    [notified] = json.loads(cli("status", "toy", "--json").stdout)["notified"]
    assert notified.startswith("succeeded: sent by command at 2")
    [message] = told(tmp_path)
    assert (message["event"], message["name"], message["state"], message["reason"]) == ("succeeded", "toy", "succeeded", "")


def test_a_webhook_is_told_why_a_run_has_failed_and_its_url_is_nowhere(cli: Cli, tmp_path: Path) -> None:
    notify = {"webhook": {"secret": "hook", "allow_http": True}}
    with serving(200) as server:
        url = f"{server.address}/{PLACE}"
        program = "echo ${NOTIFY_WEBHOOK-unset} >&2; echo no data >&2; exit 3"
        done = cli("up", write(tmp_path, program, notify), env={"NOTIFY_WEBHOOK": url})
        assert done.returncode == 1, done.stderr
        until("the message", lambda: server.received, seen=lambda: cli("status", "toy").stdout)
    assert "chief | unset" in done.stdout.splitlines()
    [(path, _, message)] = server.received
    assert path == f"/{PLACE}"
    assert (message["event"], message["state"]) == ("failed", "failed")
    assert message["reason"].startswith("chief failed on attempt 1 (exit code 3): ")
    until_status(cli, "sent by webhook at")
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert [str(path) for path in files if PLACE.encode() in path.read_bytes()] == []
    assert PLACE not in done.stdout + done.stderr


def test_an_url_may_be_in_the_env_file_and_a_run_starts_without_one(cli: Cli, tmp_path: Path) -> None:
    spec = write(tmp_path, "exit 0", {"webhook": {"secret": "hook", "allow_http": True}})
    done = cli("up", spec)
    assert done.returncode == 0, done.stderr
    assert "notice: no message is sent to the webhook: its URL, NOTIFY_WEBHOOK, is not set in this environment" in done.stdout.splitlines()
    with serving(200) as server:
        (tmp_path / "team.env").write_text(f"NOTIFY_WEBHOOK={server.address}/{PLACE}\n")
        done = cli("up", spec, "--fresh", "--set", "env_file=team.env")
        assert done.returncode == 0, done.stderr
        until("the message", lambda: server.received, seen=lambda: cli("status", "toy").stdout)


def test_a_failure_to_tell_changes_nothing_and_is_said_in_a_line(cli: Cli, tmp_path: Path) -> None:
    route, arrived = tmp_path / "route", tmp_path / "arrived"
    tell = f"test -e {route} && touch {arrived} && exit; echo no route >&2; exit 4"
    done = cli("up", write(tmp_path, "exit 0", {"command": ["sh", "-c", tell]}))
    assert done.returncode == 0, done.stderr
    words = "succeeded: not yet sent by command: sh ended with exit code 4: no route; retried until "
    until_status(cli, words)
    assert json.loads(cli("status", "toy", "--json").stdout)["state"] == "succeeded"
    assert "sending by command: toy has succeeded" in (tmp_path / "runs/toy/launcher/supervisor.log").read_text()
    assert cli("down", "toy", "--delete-data", "--yes").returncode == 0
    assert not (tmp_path / "runs/toy").exists()
    route.touch()
    until("the next try, of a run that is deleted", arrived.exists, 120, seen=lambda: list(tmp_path.iterdir()))


def test_a_stall_is_told_once_and_a_run_that_somebody_stops_is_not(cli: Cli, tmp_path: Path) -> None:
    spec = write(tmp_path, "echo begins; sleep 600", {"command": ["./tell"]}, stall_timeout="1s")
    started = cli("up", spec, "--detach")
    assert "notice: its supervisor on this machine sends messages by command" in started.stdout.splitlines()
    until("the message", lambda: told(tmp_path), seen=lambda: cli("status", "toy").stdout)
    time.sleep(6)  # it is looked at again meanwhile
    assert cli("down", "toy").returncode == 0
    [message] = told(tmp_path)
    assert (message["event"], message["state"]) == ("stalled", "running")
    assert message["reason"].startswith("chief makes no progress since ")


BOTH = {"command": ["true"], "webhook": {"secret": "hook"}}


@pytest.mark.parametrize(
    "on, attendant, lacking, words",
    [
        ("local", False, [], ["its supervisor on this machine sends messages by command and webhook"]),
        ("docker", False, ["no URL"], ["its supervisor on this machine sends messages by command"]),
        ("kubernetes", False, [], ["no message is sent by command or webhook unless `launcher wait toy` watches it"]),
        (
            "kubernetes",
            True,
            [],
            ["its attendant sends messages by webhook; no message is sent by command unless `launcher wait toy` watches it"],
        ),
    ],
)
def test_it_is_said_who_tells_of_a_run_in_the_background(on: str, attendant: bool, lacking: list[str], words: list[str]) -> None:
    document = {"version": 1, "name": "toy", "train": {"workload": "mnist_mlp"}, "notify": BOTH, "kubernetes": {"attendant": attendant}}
    said = list(_background_notices(ClusterSpec.model_validate(document), on, "launcher wait toy", lacking))
    assert said[-1:] == words
