"""The parent process and the peers of its task, with real processes."""

import os
import signal
import time
from typing import Any

from tests.golden_messages import Golden
from tests.processes import is_alive
from tests.trainer.stand_ins import DONE, GRACEFUL, IGNORES_SIGTERM, shell


def assert_stops(run: Any) -> None:
    """Check that a task runs, and stops with 143 when asked to."""
    assert run.process.poll() is None
    run.send(signal.SIGTERM)
    assert run.code() == 143


def wait_until_waiting_for(run: Any, seconds: float) -> None:
    """Wait until the parent reports that it has waited for its peers for this many seconds."""
    number = 1
    while run.event("waiting", number)["seconds"] < seconds:
        number += 1


class TestPeers:
    """Peers that are missing, late or lost."""

    def test_missing_peers_are_named_until_all_are_reached(self, trainers: Any, ports: Any) -> None:
        late, reachable = ports.address(), ports.address()
        ports.listen(reachable)
        run = trainers.start_parent(
            *GRACEFUL, required_peers={"worker-1": late, "ps-0": reachable}, timeouts={"first_report_after": 0.2, "report_interval": 0.3}
        )
        waiting = run.event("waiting")
        assert waiting["missing"] == [{"task": "worker-1", "address": late, "reason": "connection refused"}]
        assert waiting["timeout"] == 600
        run.event("waiting", 2)
        ports.listen(late)
        assert "every peer was reached" in run.event("notice")["message"]
        count = len(run.events("waiting"))
        ports.close(reachable)
        ports.close(late)
        time.sleep(0.5)
        assert len(run.events("waiting")) == count
        assert_stops(run)
        assert len(run.events("started")) == 1

    def test_a_task_that_has_reached_all_peers_reports_that_no_step_follows(self, trainers: Any, ports: Any) -> None:
        reachable = ports.address()
        ports.listen(reachable)
        run = trainers.start_parent(*GRACEFUL, required_peers={"ps-0": reachable}, trains=True, timeouts={"no_step_report": 0.2})
        waiting = run.event("waiting", 2)
        assert waiting["missing"] == []
        assert waiting["seconds"] >= 0.4
        assert_stops(run)

    def test_a_users_program_is_ready_once_it_has_reached_its_peers(self, trainers: Any, ports: Any) -> None:
        late = ports.address()
        run = trainers.start_parent(
            *GRACEFUL, runs_built_in_trainer=False, required_peers={"worker-1": late}, timeouts={"first_report_after": 0.2}
        )
        run.event("waiting")
        assert not run.events("ready")
        ports.listen(late)
        assert run.event("ready")["seconds"] >= 0.2
        assert_stops(run)

    def test_it_ends_at_the_deadline_and_names_the_missing_peers(self, trainers: Any, ports: Any, golden: Golden) -> None:
        address = ports.address()
        run = trainers.start_parent(*IGNORES_SIGTERM, required_peers={"ps-1": address}, timeouts={"start": 0.5, "kill_after": 0.2})
        child = int(run.line("ready"))
        assert run.code() == 75
        failed = run.event("failed")
        assert failed["exit_code"] == 75
        golden(failed["cause"])
        assert failed["detail"] == f"missing: ps-1 ({address}: connection refused)"
        assert not is_alive(child)
        assert not run.events("restarting")

    def test_the_training_process_does_not_wait_for_peers(self, trainers: Any, ports: Any) -> None:
        run = trainers.start_parent(*shell(DONE), required_peers={"ps-0": ports.address()})
        assert run.code() == 0

    def test_hundreds_of_missing_peers_fit_in_one_line_and_are_all_found(self, trainers: Any, ports: Any) -> None:
        address = ports.address()
        required_peers = {f"worker-{index}": address for index in range(400)}
        run = trainers.start_parent(*GRACEFUL, required_peers=required_peers, timeouts={"first_report_after": 0.5})
        waiting = run.event("waiting")
        assert len(waiting["missing"]) + waiting["more"] == 400
        assert all(peer["reason"] == "connection refused" for peer in waiting["missing"])
        assert max(map(len, run.lines)) < 4096
        ports.listen(address)
        run.event("notice")
        assert_stops(run)

    def test_a_server_ends_when_its_chief_does_not_answer(self, trainers: Any, ports: Any, golden: Golden) -> None:
        address = ports.address()
        ports.listen(address)
        run = trainers.start_parent(*GRACEFUL, watched_chief=address, role="ps", timeouts={"orphan": 1})
        run.line("ready")
        ports.close(address)
        assert run.code() == 75
        failed = run.event("failed")
        golden(failed["cause"])
        assert address in failed["detail"]
        assert "does not answer" in run.event("notice")["message"]

    def test_a_stopped_server_keeps_serving_until_its_chief_has_saved(self, trainers: Any, ports: Any) -> None:
        address = ports.address()
        ports.listen(address)
        run = trainers.start_parent(*GRACEFUL, watched_chief=address, role="ps")
        run.line("ready")
        run.send(signal.SIGTERM)
        assert "until the chief has saved" in run.event("stopping")["reason"]
        time.sleep(0.5)
        assert run.process.poll() is None
        assert "saved" not in run.lines
        ports.close(address)
        assert run.code() == 143

    def test_a_server_is_warned_at_once_of_its_stop(self, trainers: Any, ports: Any) -> None:
        address = ports.address()
        ports.listen(address)
        program = 'trap "echo warned" URG; trap "exit 143" TERM; echo ready; while :; do sleep 0.05; done'
        run = trainers.start_parent("sh", "-c", program, watched_chief=address, role="ps")
        run.line("ready")
        run.send(signal.SIGTERM)
        run.line("warned")
        assert run.process.poll() is None
        ports.close(address)
        assert run.code() == 143

    def test_a_server_that_stops_without_its_chief_keeps_serving_only_for_a_while(self, trainers: Any, ports: Any) -> None:
        address = ports.address()
        ports.listen(address)
        run = trainers.start_parent(*GRACEFUL, watched_chief=address, role="ps", timeouts={"server_stop": 0.3})
        run.line("ready")
        run.send(signal.SIGTERM)
        assert run.code() == 143

    def test_a_chief_that_comes_back_in_time_is_not_lost(self, trainers: Any, ports: Any) -> None:
        address = ports.address()
        run = trainers.start_parent(*GRACEFUL, watched_chief=address, role="worker", timeouts={"orphan": 8, "server_stop": 0.1})
        run.event("notice")
        ports.listen(address)
        assert run.event("notice", 2)["message"] == "the chief answers again"
        assert_stops(run)

    def test_a_chief_without_any_worker_saves_and_ends(self, trainers: Any, ports: Any, golden: Golden) -> None:
        first, second = ports.address(), ports.address()
        ports.listen(first)
        ports.listen(second)
        workers = {"worker-0": first, "worker-1": second}
        timeouts = {"orphan": 2, "first_report_after": 0}
        run = trainers.start_parent(*GRACEFUL, required_peers=workers, watched_workers=list(workers.values()), timeouts=timeouts)
        run.line("ready")
        assert "every peer was reached" in run.event("notice")["message"]
        ports.close(first)
        ports.close(second)
        assert run.code() == 75
        assert "saved" in run.lines
        failed = run.event("failed")
        golden(failed["cause"])
        assert first in failed["detail"]
        assert second in failed["detail"]
        assert not run.events("restarting")

    def test_a_worker_that_comes_back_in_time_keeps_the_chief_running(self, trainers: Any, ports: Any) -> None:
        first, second = ports.address(), ports.address()
        ports.listen(first)
        workers = {"worker-0": first, "worker-1": second}
        timeouts = {"orphan": 8, "first_report_after": 0}
        run = trainers.start_parent(
            *GRACEFUL, required_peers={"worker-0": first}, watched_workers=list(workers.values()), timeouts=timeouts
        )
        run.line("ready")
        assert "every peer was reached" in run.event("notice")["message"]
        ports.close(first)
        assert "every worker" in run.event("notice", 2)["message"]
        ports.listen(second)
        assert run.event("notice", 3)["message"] == "a worker answers again"
        assert_stops(run)

    def test_late_workers_are_awaited_until_the_start_timeout(self, trainers: Any, ports: Any) -> None:
        address = ports.address()
        workers = {"worker-0": address}
        timeouts = {"orphan": 0.2, "start": 60, "first_report_after": 0.1, "report_interval": 0.2}
        run = trainers.start_parent(*GRACEFUL, required_peers=workers, watched_workers=list(workers.values()), timeouts=timeouts)
        run.line("ready")
        wait_until_waiting_for(run, 0.8)
        ports.listen(address)
        assert "every peer was reached" in run.event("notice")["message"]
        assert_stops(run)

    def test_peers_lost_after_a_while_do_not_use_up_the_restarts_while_training_progresses(self, trainers: Any, ports: Any) -> None:
        address = ports.address()
        ports.listen(address)
        policy = {"max_restarts": 0, "healthy_after": 0.1}
        step = "$((TRAINER_ATTEMPT < 3 ? TRAINER_ATTEMPT : 3))"
        script = f"sleep 1; echo {step} > $TRAINER_ERROR_FILE.fingerprint; exit 75"
        run = trainers.start_parent(*shell(script), required_peers={"worker-0": address}, policy=policy)
        assert run.code() == 1
        assert [event["restarts"] for event in run.events("restarting")] == [0, 0, 0]
        assert "the limit of 0 restarts is reached" in run.event("failed")["cause"]

    def test_a_new_attempt_awaits_its_workers_until_the_start_timeout(self, trainers: Any, ports: Any) -> None:
        address = ports.address()
        ports.listen(address)
        workers = {"worker-0": address}
        program = 'trap "exit 143" TERM; trap "exit 75" USR1; echo ready; while :; do sleep 0.05; done'
        timeouts = {"orphan": 2, "first_report_after": 0, "report_interval": 0.2}
        run = trainers.start_parent(*shell(program), required_peers=workers, watched_workers=list(workers.values()), timeouts=timeouts)
        run.event("notice")
        ports.close(address)
        run.line("ready")
        os.kill(run.event("started")["pid"], signal.SIGUSR1)
        run.event("started", 2)
        wait_until_waiting_for(run, 2.5)
        assert_stops(run)

    def test_a_task_that_loses_a_peer_while_it_stops_has_stopped(self, trainers: Any) -> None:
        # For some roles a Job fails finally on exit code 75; a drained node is no reason for that.
        run = trainers.start_parent(*shell('trap "exit 75" TERM; echo ready; while :; do sleep 0.1; done'))
        run.line("ready")
        run.send(signal.SIGTERM)
        assert run.code() == 143
        assert not run.events("failed")
