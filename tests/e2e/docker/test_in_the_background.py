"""A run in the background: `wait` has the exit code of its end, `logs --follow` its output, and its supervisor sends messages."""

import json
from pathlib import Path

import pytest

from launcher.docker_cli import docker
from tests.e2e.docker.running import launch, started
from tests.webhook import serving

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("image")]


@pytest.mark.parametrize("code, wait_code, state", [(0, 0, "succeeded"), (3, 1, "failed")])
def test_wait_reports_how_the_run_ended(code: int, wait_code: int, state: str, tmp_path: Path) -> None:
    program = ["sh", "-c", f"echo begins; while [ ! -e /tmp/go ]; do sleep 0.2; done; sleep 2; echo ends; exit {code}"]
    with started({"name": "waited", "command": program, "limits": {"max_restarts": 0}}, tmp_path) as run:
        impatient = launch("wait", run.name, "--timeout", "1s", runs=run.runs)
        assert (impatient.returncode, "has not ended within 1s" in impatient.stderr) == (124, True), impatient.stderr
        docker("exec", run.container("chief"), "touch", "/tmp/go")
        followed = run.launcher("logs", run.name, "--follow")
        assert [line.split()[-1] for line in followed.splitlines() if "begins" in line or "ends" in line] == ["begins", "ends"]
        result = launch("wait", run.name, runs=run.runs)
        assert (result.returncode, state in result.stdout) == (wait_code, True), result.stdout + result.stderr
        assert run.status()["state"] == state


def test_the_supervisor_notifies_a_program_and_a_webhook_whose_url_containers_do_not_get(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message_file = tmp_path / "message"
    notify = {"command": ["sh", "-c", f"cat > {message_file}"], "webhook": {"secret": "hook", "allow_http": True}}
    program = ["sh", "-c", "env; exit 3"]
    document = {"name": "notified", "command": program, "limits": {"max_restarts": 0}, "notify": notify}
    with serving(200) as server:
        monkeypatch.setenv("NOTIFY_WEBHOOK", f"{server.address}/T0KEN")
        with started(document, tmp_path) as run:
            assert launch("wait", run.name, runs=run.runs).returncode == 1
            run.until("both messages to be sent", lambda: server.received and len(run.status()["notified"]) == 2)
            assert "T0KEN" not in run.launcher("logs", run.name)
    [(path, _, message)] = server.received
    assert (path, message["event"], message["backend"]) == ("/T0KEN", "failed", "docker")
    assert json.loads(message_file.read_text()) == message


def test_stacks_of_a_program_are_read_inside_its_container(tmp_path: Path) -> None:
    program = ["python", "-c", "import time\ndef waits():\n    print('waits', flush=True)\n    time.sleep(3600)\nwaits()"]
    with started({"name": "stacks", "command": program, "limits": {"grace_period": "1s"}}, tmp_path) as run:
        run.until("the program to wait", lambda: "waits" in run.launcher("logs", run.name), seen=lambda: run.launcher("logs", run.name))
        assert 'File "<string>", line 4 in waits' in run.launcher("stacks", run.name)
        docker("pause", run.container("chief"))
        paused = launch("stacks", run.name, runs=run.runs)
        docker("unpause", run.container("chief"))
        assert (paused.returncode, "does not answer: it is stopped, or its machine or container is frozen" in paused.stdout) == (1, True), (
            paused
        )
