"""Messages as they are sent: to real programs and to real servers on loopback, that fail, hang, lead elsewhere or are not there."""

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

from launcher.notify import ledger, outbox, sender
from launcher.notify.message import end_message
from launcher.runs.status import RunStatus, State
from tests.processes import is_alive
from tests.waiting import until
from tests.webhook import serving

PLACE = "T0KEN-in-the-path"
END = end_message(RunStatus("digits", "local", State.FAILED, "boom", started=1.0, ended=2.0, step=3), 2.0)
assert END is not None
PAYLOAD = END.payload()
FAST = (0.01, 0.02)  # seconds until another try


def posted(url: str, *, seconds: float = 0.0, allow_http: bool = True) -> tuple[str, int]:
    request = {"payload": PAYLOAD, "channel": "webhook", "url": url, "allow_http": allow_http, "seconds": seconds}
    return sender.deliver(request, FAST)


def called(*command: str, seconds: float = 0.0, ends_within: float = 60.0) -> tuple[str, int]:
    request = {"payload": PAYLOAD, "channel": "command", "command": list(command), "seconds": seconds, "ends_within": ends_within}
    return sender.deliver(request, FAST)


def test_a_program_runs_in_its_directory_and_one_that_is_gone_is_named(tmp_path: Path) -> None:
    assert END is not None
    request = outbox.Channel("command", ("touch", "here"), str(tmp_path)).request(END, 0.0)
    assert sender.deliver(request) == ("", 1)
    assert (tmp_path / "here").exists()
    lacking = f"touch cannot be started: there is no directory {tmp_path}/gone"
    assert sender.deliver(request | {"directory": f"{tmp_path}/gone"}) == (lacking, 1)


def test_a_webhook_gets_the_message_as_json() -> None:
    with serving(204) as server:
        assert posted(f"{server.address}/{PLACE}") == ("", 1)
    assert server.received == [(f"/{PLACE}", "application/json", PAYLOAD)]


def test_a_server_that_fails_for_a_while_is_told_once_it_does_not() -> None:
    with serving(503, 500, 200) as server:
        assert posted(server.address, seconds=30) == ("", 3)
    assert len(server.received) == 3


def test_a_server_that_fails_is_given_up_and_the_message_has_no_url(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count(0, 0.03)  # at each look at the clock, however long a try takes here
    monkeypatch.setattr(sender, "time", SimpleNamespace(monotonic=lambda: next(seconds), sleep=lambda _: None))
    with serving(404) as server:
        assert posted(f"{server.address}/{PLACE}", seconds=0.1) == ("the webhook answered 404 Not Found", 3)
    assert len(server.received) == 3


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_message_goes_nowhere_else_than_where_it_is_meant_to(code: int) -> None:
    with serving(code) as server:
        why, _ = posted(f"{server.address}/{PLACE}")
    assert why.startswith(f"the webhook answered {code} ")
    assert "to another address, where no message is sent" in why
    assert [path for path, _, _ in server.received] == [f"/{PLACE}"]


def test_a_server_that_does_not_answer_and_one_that_drips_have_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "_REQUEST_TIMEOUT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        why, _ = posted(f"http://127.0.0.1:{silent.getsockname()[1]}/{PLACE}")
    assert why == "the webhook did not answer within 0.5 s"

    class Drip(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                for letter in b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1000:
                    self.request.sendall(bytes([letter]))
                    time.sleep(0.05)

    with socketserver.TCPServer(("127.0.0.1", 0), Drip) as dripping:
        thread = threading.Thread(target=dripping.handle_request)
        thread.start()
        why, _ = posted(f"http://127.0.0.1:{dripping.server_address[1]}/{PLACE}")
        thread.join(60)
    assert why == "the webhook did not answer within 0.5 s"


@pytest.mark.parametrize(
    "url, why",
    [
        (f"http://127.0.0.1:1/{PLACE}", "the webhook was not reached: Connection refused"),
        (f"ftp://127.0.0.1/{PLACE}", "the webhook's Secret does not contain an https: URL"),
        (f"file:///{PLACE}", "the webhook's Secret does not contain an https: URL"),
        (PLACE, "the webhook's Secret does not contain an https: URL"),
        ("", "the webhook's Secret does not contain an https: URL"),
        (f"https://example.com:port/{PLACE}", "the webhook's Secret does not contain an https: URL"),
        (f"https://example.com/{PLACE}\r\nX: y", "the webhook's Secret does not contain an https: URL"),
        (f"https://me:{PLACE}@example.com/", "the webhook's URL contains a user name, which is not supported"),
    ],
)
def test_an_url_that_leads_nowhere_is_named_by_what_is_wrong_and_not_shown(url: str, why: str) -> None:
    assert posted(url) == (why, 1)


def test_http_has_to_be_asked_for() -> None:
    with serving(200) as server:
        why, _ = posted(server.address, allow_http=False)
    assert "notify.webhook.allow_http allows it" in why
    assert server.received == []


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate, and is not here")
def test_a_server_whose_certificate_nobody_vouches_for_is_told_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    made += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "ca")]
    subprocess.run(made, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "ca", tmp_path / "key")
    with serving(200) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        url = f"https://localhost:{server.server_port}/{PLACE}"
        why, _ = posted(url, allow_http=False)
        assert "certificate verify failed" in why
        assert server.received == []
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca"))
        assert posted(url, allow_http=False) == ("", 1)
    assert len(server.received) == 1


def test_a_program_gets_the_message_on_stdin_and_in_variables(tmp_path: Path) -> None:
    assert called("sh", "-c", f"cat > {tmp_path}/told; env > {tmp_path}/env") == ("", 1)
    assert json.loads((tmp_path / "told").read_text()) == PAYLOAD
    assert "NOTIFY_TEXT=digits has failed at step 3: boom" in (tmp_path / "env").read_text().splitlines()


def test_a_program_need_not_read_and_what_it_leaves_running_is_not_waited_for() -> None:
    began = time.monotonic()
    assert called("sh", "-c", "sleep 60 & exit 0") == ("", 1)
    assert time.monotonic() - began < 30


def test_a_program_that_fails_is_told_by_its_last_line() -> None:
    assert called("sh", "-c", "echo one; echo no route to mail >&2; exit 75") == ("sh ended with exit code 75: no route to mail", 1)
    assert called("sh", "-c", "kill -9 $$") == ("sh ended with signal SIGKILL", 1)
    assert called("/no/such") == ("/no/such cannot be started: No such file or directory", 1)


def test_a_program_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    script = f"sleep 100 & echo $! > {tmp_path}/pid; yes"
    assert called("sh", "-c", script, ends_within=1.0) == ("sh did not end within 1 s, and was killed", 1)
    child = int((tmp_path / "pid").read_text())
    until("the end of the program's child", lambda: not is_alive(child), seen=lambda: child)


def ended(sending: outbox.Sending) -> ledger.Entry:
    outcome: ledger.Entry = until("the end of the sender", sending.outcome, seen=lambda: sending)
    return outcome


def test_a_sender_is_a_process_that_tells_how_it_went_and_never_the_url() -> None:
    assert END is not None
    with serving(200) as server:
        sending = outbox.Sending(outbox.Channel("webhook", url=f"{server.address}/{PLACE}", allow_http=True).request(END, 0.0))
        outcome = ended(sending)
    assert (outcome["state"], outcome["key"]) == (ledger.SENT, PAYLOAD["id"])
    assert outcome["words"].startswith("failed: sent by webhook at ")
    assert server.received[0][2] == PAYLOAD


def test_the_url_is_read_from_its_file_at_each_try(tmp_path: Path) -> None:
    with serving(200) as server:
        request = {"payload": PAYLOAD, "channel": "webhook", "url_file": str(tmp_path / "url"), "allow_http": True, "seconds": 60}

        def make(why: str) -> None:
            assert why == "the Secret with the webhook's URL does not exist, or lacks its key"
            (tmp_path / "url").write_text(f"{server.address}\n")

        assert sender.deliver(request, FAST, make) == ("", 2)


def test_what_has_become_of_messages_is_kept_in_a_file_and_failures_in_a_line(tmp_path: Path) -> None:
    assert END is not None
    outcomes, log = tmp_path / "notified.jsonl", tmp_path / "log"
    with log.open("wb") as file:
        request = outbox.Channel("webhook", url=f"http://127.0.0.1:1/{PLACE}", allow_http=True).request(END, 1.5)
        ended(outbox.Sending(request, outcomes=outcomes, log=file.fileno()))
        ended(outbox.Sending(outbox.Channel("command", ("true",)).request(END, 0.0), outcomes=outcomes, log=file.fileno()))
    assert len(outcomes.read_text().splitlines()) == 3
    failed, told = outbox.read_outcomes(outcomes)
    assert failed == "failed: not sent by webhook: the webhook was not reached: Connection refused (2 tries)"
    assert told.startswith("failed: sent by command at ")
    assert [line.partition(" ")[2] for line in log.read_text().splitlines()] == [f"digits, {failed}"]
    assert PLACE not in outcomes.read_text() + log.read_text()
    assert outbox.read_outcomes(tmp_path / "none") == ()


def test_no_argument_or_variable_of_a_sender_has_the_url() -> None:
    assert END is not None
    with socket.create_server(("127.0.0.1", 0)) as silent:
        request = outbox.Channel("webhook", url=f"http://127.0.0.1:{silent.getsockname()[1]}/{PLACE}", allow_http=True).request(END, 0.0)
        sending = outbox.Sending(request)
        connection, _ = silent.accept()
        with connection:
            for what in ("cmdline", "environ"):
                assert PLACE.encode() not in Path(f"/proc/{sending.pid}/{what}").read_bytes()
        ended(sending)
