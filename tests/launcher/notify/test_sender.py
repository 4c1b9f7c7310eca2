"""Sending messages to real programs and to real servers on loopback, which fail, hang, redirect or do not exist."""

import contextlib
import itertools
import json
import shutil
import socket
import socketserver
import ssl
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.notify import delivery, ledger, sender
from launcher.notify.message import end_message
from launcher.runs.status import RunStatus, State
from tests.processes import is_alive
from tests.waiting import until
from tests.webhook import serving

URL_PATH = "T0KEN-in-the-path"
_message = end_message(RunStatus("digits", "local", State.FAILED, "boom", started=1.0, ended=2.0, step=3), 2.0)
assert _message is not None
END = _message
PAYLOAD = END.payload()
FAST = (0.01, 0.02)  # seconds until another try


def post(url: str, *, seconds: float = 0.0, allow_http: bool = True) -> tuple[str, int]:
    request = {"payload": PAYLOAD, "channel": "webhook", "url": url, "allow_http": allow_http, "seconds": seconds}
    return sender.deliver(request, FAST)


def call(*command: str) -> tuple[str, int]:
    request = {"payload": PAYLOAD, "channel": "command", "command": list(command), "seconds": 0.0}
    return sender.deliver(request, FAST)


def test_a_program_runs_in_its_directory_and_a_missing_directory_is_named(tmp_path: Path) -> None:
    request = delivery.Channel("command", ("touch", "here"), str(tmp_path)).request(END, 0.0)
    assert sender.deliver(request) == ("", 1)
    assert (tmp_path / "here").exists()
    reason = f"touch cannot be started: there is no directory {tmp_path}/missing"
    assert sender.deliver(request | {"directory": f"{tmp_path}/missing"}) == (reason, 1)


def test_a_webhook_gets_the_message_as_json() -> None:
    with serving(204) as server:
        assert post(f"{server.address}/{URL_PATH}") == ("", 1)
    assert server.received == [(f"/{URL_PATH}", "application/json", PAYLOAD)]


def test_a_server_that_fails_for_a_while_gets_the_message_afterwards() -> None:
    with serving(503, 500, 200) as server:
        assert post(server.address, seconds=30) == ("", 3)
    assert len(server.received) == 3


def test_a_server_that_keeps_failing_is_given_up_and_the_reason_has_no_url(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count(0, 0.03)  # at each reading of the clock, however long a try takes
    monkeypatch.setattr(sender, "time", SimpleNamespace(monotonic=lambda: next(seconds), sleep=lambda _: None))
    with serving(404) as server:
        assert post(f"{server.address}/{URL_PATH}", seconds=0.1) == ("the webhook answered 404 Not Found", 3)
    assert len(server.received) == 3


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(code: int) -> None:
    with serving(code) as server:
        reason, _ = post(f"{server.address}/{URL_PATH}")
    assert reason.startswith(f"the webhook answered {code} ")
    assert "to another address, where no message is sent" in reason
    assert [path for path, _, _ in server.received] == [f"/{URL_PATH}"]


def test_a_server_that_does_not_answer_and_one_that_answers_slowly_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "_REQUEST_TIMEOUT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        reason, _ = post(f"http://127.0.0.1:{silent.getsockname()[1]}/{URL_PATH}")
    assert reason == "the webhook did not answer within 0.5 s"

    class Drip(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                for letter in b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1000:
                    self.request.sendall(bytes([letter]))
                    time.sleep(0.05)

    with socketserver.TCPServer(("127.0.0.1", 0), Drip) as dripping:
        thread = threading.Thread(target=dripping.handle_request)
        thread.start()
        reason, _ = post(f"http://127.0.0.1:{dripping.server_address[1]}/{URL_PATH}")
        thread.join(60)
    assert reason == "the webhook did not answer within 0.5 s"


@pytest.mark.parametrize(
    "url, reason",
    [
        (f"http://127.0.0.1:1/{URL_PATH}", "the webhook was not reached: Connection refused"),
        (f"ftp://127.0.0.1/{URL_PATH}", "the webhook's URL is not an https: URL"),
        (f"file:///{URL_PATH}", "the webhook's URL is not an https: URL"),
        (URL_PATH, "the webhook's URL is not an https: URL"),
        ("", "the webhook's URL is not an https: URL"),
        (f"https://example.com:port/{URL_PATH}", "the webhook's URL is not an https: URL"),
        (f"https://example.com/{URL_PATH}\r\nX: y", "the webhook's URL is not an https: URL"),
        (f"https://me:{URL_PATH}@example.com/", "the webhook's URL contains a user name, which is not supported"),
    ],
)
def test_the_reason_for_an_unusable_url_does_not_show_it(url: str, reason: str) -> None:
    assert post(url) == (reason, 1)


def test_http_has_to_be_allowed() -> None:
    with serving(200) as server:
        reason, _ = post(server.address, allow_http=False)
    assert "notify.webhook.allow_http allows it" in reason
    assert server.received == []


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which creates the certificate, is not installed")
def test_a_server_with_an_untrusted_certificate_gets_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "ca")]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "ca", tmp_path / "key")
    with serving(200) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        url = f"https://localhost:{server.server_port}/{URL_PATH}"
        reason, _ = post(url, allow_http=False)
        assert "certificate verify failed" in reason
        assert server.received == []
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca"))
        assert post(url, allow_http=False) == ("", 1)
    assert len(server.received) == 1


def test_a_program_gets_the_message_on_stdin_and_in_variables(tmp_path: Path) -> None:
    assert call("sh", "-c", f"cat > {tmp_path}/message; env > {tmp_path}/env") == ("", 1)
    assert json.loads((tmp_path / "message").read_text()) == PAYLOAD
    assert "NOTIFY_TEXT=digits has failed at step 3: boom" in (tmp_path / "env").read_text().splitlines()


def test_a_program_need_not_read_the_message_and_its_children_are_not_waited_for() -> None:
    began = time.monotonic()
    assert call("sh", "-c", "sleep 60 & exit 0") == ("", 1)
    assert time.monotonic() - began < 30


def test_the_reason_for_a_failed_program_has_its_last_line() -> None:
    assert call("sh", "-c", "echo one; echo no route to mail >&2; exit 75") == ("sh ended with exit code 75: no route to mail", 1)
    assert call("sh", "-c", "kill -9 $$") == ("sh ended with signal SIGKILL", 1)
    assert call("sh", "-c", "kill -40 $$") == ("sh ended with signal 40", 1)
    assert call("/no/such") == ("/no/such cannot be started: No such file or directory", 1)


def test_a_program_that_hangs_is_killed_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "_COMMAND_TIMEOUT", 1.0)
    script = f"sleep 3600 & echo $! > {tmp_path}/pid; yes"
    assert call("sh", "-c", script) == ("sh did not end within 1 s, and was killed", 1)
    child = int((tmp_path / "pid").read_text())
    until("the end of the program's child", lambda: not is_alive(child), seen=lambda: child)


def outcome_of(process: delivery.SenderProcess) -> ledger.Entry:
    outcome: ledger.Entry = until("the end of the sender", process.outcome, seen=lambda: process)
    return outcome


def test_the_sender_s_process_reports_the_outcome() -> None:
    with serving(200) as server:
        request = delivery.Channel("webhook", url=f"{server.address}/{URL_PATH}", allow_http=True).request(END, 0.0)
        outcome = outcome_of(delivery.SenderProcess(request))
    assert (outcome["state"], outcome["key"]) == (ledger.SENT, PAYLOAD["id"])
    assert outcome["words"].startswith("failed: sent by webhook at ")
    assert server.received[0][2] == PAYLOAD


def test_the_url_is_read_from_its_file_at_each_try(tmp_path: Path) -> None:
    with serving(200) as server:
        request = {"payload": PAYLOAD, "channel": "webhook", "url_file": str(tmp_path / "url"), "allow_http": True, "seconds": 60}

        def write_url(reason: str) -> None:
            assert reason == "the Secret with the webhook's URL does not exist, or lacks its key"
            (tmp_path / "url").write_text(f"{server.address}\n")

        assert sender.deliver(request, FAST, write_url) == ("", 2)


def test_outcomes_are_stored_in_a_file_and_failures_are_written_to_stderr(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    outcomes = tmp_path / "notified.jsonl"
    webhook = delivery.Channel("webhook", url=f"http://127.0.0.1:1/{URL_PATH}", allow_http=True).request(END, 1.5)
    for request in (webhook, delivery.Channel("command", ("true",)).request(END, 0.0)):
        process = delivery.SenderProcess(request, outcomes)
        until("the end of the sender", process.has_ended, seen=lambda: outcomes)
    log = capfd.readouterr().err
    assert len(outcomes.read_text().splitlines()) == 3
    failed, sent = delivery.read_outcomes(outcomes)
    assert failed == "failed: not sent by webhook: the webhook was not reached: Connection refused (2 tries)"
    assert sent.startswith("failed: sent by command at ")
    assert [line.partition(" ")[2] for line in log.splitlines()] == [f"digits, {failed}"]
    assert URL_PATH not in outcomes.read_text() + log
    assert delivery.read_outcomes(tmp_path / "none") == ()


def test_no_argument_or_variable_of_a_sender_has_the_url() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        request = delivery.Channel("webhook", url=f"http://127.0.0.1:{silent.getsockname()[1]}/{URL_PATH}", allow_http=True).request(
            END, 0.0
        )
        process = delivery.SenderProcess(request)
        connection, _ = silent.accept()
        with connection:
            for file in ("cmdline", "environ"):
                assert URL_PATH.encode() not in Path(f"/proc/{process.pid}/{file}").read_bytes()
        outcome_of(process)
