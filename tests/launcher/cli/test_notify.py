"""Notifications about a run, to a program and to a server on loopback, by the supervisor of a real run."""

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

URL_PATH = "T0KEN-in-the-path"


def write(tmp_path: Path, command: str, notify: dict[str, Any], **more: Any) -> str:
    """Write a spec that runs a shell command, and the program that stores messages; return the spec's file name."""
    program = tmp_path / "notify"
    program.write_text("#!/bin/sh\ncat >> messages\n")  # in the directory of the spec
    program.chmod(0o755)
    document = {"version": 1, "name": "toy", "command": ["sh", "-c", command], "notify": notify}
    document["limits"] = {"max_restarts": 0, "grace_period": "1s"} | more
    (tmp_path / "toy.yaml").write_text(json.dumps(document))
    return "toy.yaml"


def until_status(cli: Cli, text: str) -> None:
    """Wait until `launcher status` shows a text."""
    until(f"{text!r} in the status", lambda: text in cli("status", "toy").stdout, seen=lambda: cli("status", "toy").stdout, every=0.2)


def messages(tmp_path: Path) -> list[dict[str, Any]]:
    file = tmp_path / "messages"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_program_gets_one_message_of_a_success_with_any_number_of_watchers(cli: Cli, tmp_path: Path) -> None:
    result = cli("up", write(tmp_path, "exit 0", {"command": ["./notify"]}))
    assert result.returncode == 0, result.stderr
    until("the message", lambda: messages(tmp_path), seen=lambda: cli("status", "toy").stdout)
    assert cli("wait", "toy").returncode == 0
    assert "is complete" in cli("up", "toy.yaml").stdout
    until_status(cli, "sent by command at")
    [notified] = json.loads(cli("status", "toy", "--json").stdout)["notified"]
    assert notified.startswith("succeeded: sent by command at 2")
    [message] = messages(tmp_path)
    assert (message["event"], message["name"], message["state"], message["reason"]) == ("succeeded", "toy", "succeeded", "")


def test_a_webhook_gets_the_reason_of_a_failure_and_its_url_is_in_no_file_or_output(cli: Cli, tmp_path: Path) -> None:
    notify = {"webhook": {"secret": "hook", "allow_http": True}}
    with serving(200) as server:
        url = f"{server.address}/{URL_PATH}"
        program = "echo ${NOTIFY_WEBHOOK-unset} >&2; echo no data >&2; exit 3"
        result = cli("up", write(tmp_path, program, notify), env={"NOTIFY_WEBHOOK": url})
        assert result.returncode == 1, result.stderr
        until("the message", lambda: server.received, seen=lambda: cli("status", "toy").stdout)
    assert "chief | unset" in result.stdout.splitlines()
    [(path, _, message)] = server.received
    assert path == f"/{URL_PATH}"
    assert (message["event"], message["state"]) == ("failed", "failed")
    assert message["reason"].startswith("chief failed on attempt 1 (exit code 3): ")
    until_status(cli, "sent by webhook at")
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert [str(path) for path in files if URL_PATH.encode() in path.read_bytes()] == []
    assert URL_PATH not in result.stdout + result.stderr


def test_an_url_may_be_in_the_env_file_and_a_run_starts_without_one(cli: Cli, tmp_path: Path) -> None:
    spec = write(tmp_path, "exit 0", {"webhook": {"secret": "hook", "allow_http": True}})
    result = cli("up", spec)
    assert result.returncode == 0, result.stderr
    assert (
        "notice: no message is sent to the webhook: its URL, NOTIFY_WEBHOOK, is not set in this environment" in result.stdout.splitlines()
    )
    with serving(200) as server:
        (tmp_path / "team.env").write_text(f"NOTIFY_WEBHOOK={server.address}/{URL_PATH}\n")
        result = cli("up", spec, "--fresh", "--set", "env_file=team.env")
        assert result.returncode == 0, result.stderr
        until("the message", lambda: server.received, seen=lambda: cli("status", "toy").stdout)


def test_a_message_that_cannot_be_sent_is_noted_in_the_status_and_changes_nothing_else(cli: Cli, tmp_path: Path) -> None:
    route, arrived = tmp_path / "route", tmp_path / "arrived"
    script = f"test -e {route} && touch {arrived} && exit; echo no route >&2; exit 4"
    result = cli("up", write(tmp_path, "exit 0", {"command": ["sh", "-c", script]}))
    assert result.returncode == 0, result.stderr
    text = "succeeded: not yet sent by command: sh ended with exit code 4: no route; retried until "
    until_status(cli, text)
    assert json.loads(cli("status", "toy", "--json").stdout)["state"] == "succeeded"
    assert "sending by command: toy has succeeded" in (tmp_path / "runs/toy/launcher/supervisor.log").read_text()
    assert cli("down", "toy", "--delete-data", "--yes").returncode == 0
    assert not (tmp_path / "runs/toy").exists()
    route.touch()
    until("the next try, of a run that is deleted", arrived.exists, seen=lambda: list(tmp_path.iterdir()))


def test_a_stall_sends_one_message_and_a_requested_stop_none(cli: Cli, tmp_path: Path) -> None:
    spec = write(tmp_path, "echo begins; sleep 3600", {"command": ["./notify"]}, stall_timeout="1s")
    started = cli("up", spec, "--detach")
    assert "notice: its supervisor on this machine sends messages by command" in started.stdout.splitlines()
    until("the message", lambda: messages(tmp_path), seen=lambda: cli("status", "toy").stdout)
    time.sleep(6)  # time for a second message
    assert cli("down", "toy").returncode == 0
    [message] = messages(tmp_path)
    assert (message["event"], message["state"]) == ("stalled", "running")
    assert message["reason"].startswith("chief makes no progress since ")


BOTH = {"command": ["true"], "webhook": {"secret": "hook"}}


@pytest.mark.parametrize(
    "on, attendant, lacking, expected",
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
def test_a_notice_names_the_sender_of_messages_about_a_run_in_the_background(
    on: str, attendant: bool, lacking: list[str], expected: list[str]
) -> None:
    document = {"version": 1, "name": "toy", "train": {"workload": "mnist_mlp"}, "notify": BOTH, "kubernetes": {"attendant": attendant}}
    notices = list(_background_notices(ClusterSpec.model_validate(document), on, "launcher wait toy", lacking))
    assert notices[-1:] == expected
