"""The parent process: restarts, signals, peers and lifelines, with real processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.golden_messages import Golden
from tests.processes import is_alive
from tests.trainer.stand_ins import DONE, GRACEFUL, IGNORES_SIGTERM, shell
from tests.waiting import until


class TestEnds:
    """A training process that ends by itself."""

    def test_a_process_that_reports_done_ends_the_task_with_0(self, trainers: Any) -> None:
        run = trainers.start_parent(*shell(f"echo worked; {DONE}"))
        assert run.code() == 0
        assert "worked" in run.lines
        assert len(run.events("started")) == 1
        assert not run.events("failed")

    def test_an_exit_with_0_without_a_report_is_a_failure(self, trainers: Any) -> None:
        run = trainers.start_parent(*shell("exit 0"))
        assert run.code() == 2
        assert "before its work was done" in run.event("failed")["detail"]

    def test_temporary_files_of_training_are_removed(self, trainers: Any) -> None:
        run = trainers.start_parent(*shell(f'echo in $TMPDIR; touch "$TMPDIR/converted.py"; {DONE}'))
        assert run.code() == 0
        directory = Path(run.line("in").split()[-1])
        assert directory.name.startswith("trainer-")
        assert not directory.exists()

    def test_the_next_start_removes_leftovers_of_a_killed_task_and_nothing_else(self, trainers: Any, tmp_path: Path) -> None:
        user_data = tmp_path / "trainer-data"
        user_data.mkdir()
        environment = {"TMPDIR": str(tmp_path)}
        alive, killed = (trainers.start_parent(*shell("echo in $TMPDIR; sleep 60"), env=environment) for _ in range(2))
        used, leftover = (Path(run.line("in").split()[-1]) for run in (alive, killed))
        killed.send(signal.SIGKILL)
        killed.code()
        assert leftover.is_dir()
        assert trainers.start_parent(*shell(DONE), env=environment).code() == 0
        assert sorted(tmp_path.iterdir()) == sorted([user_data, used])

    def test_started_names_the_process_that_runs(self, trainers: Any) -> None:
        run = trainers.start_parent(*shell("echo pid $$ of attempt $TRAINER_ATTEMPT"), role="worker", runs_built_in_trainer=False)
        assert run.code() == 0
        started = run.event("started")
        assert (started["attempt"], started["role"]) == (1, "worker")
        assert f"pid {started['pid']} of attempt 1" in run.lines

    def test_a_final_failure_is_never_tried_again(self, trainers: Any) -> None:
        run = trainers.start_parent(*shell('echo "first line\nno such workload" > "$TRAINER_ERROR_FILE"; exit 2'))
        assert run.code() == 2
        assert len(run.events("started")) == 1
        failed = run.event("failed")
        assert failed["exit_code"] == 2
        assert failed["cause"] == "a final failure"
        assert failed["detail"] == "no such workload"

    def test_the_output_of_an_import_that_kills_the_process_is_shown(self, trainers: Any) -> None:
        script = 'printf "I0000 oneDNN\nF0000 built for AVX\n" > "$TRAINER_ERROR_FILE.import"; kill -ABRT $$'
        run = trainers.start_parent(*shell(script), policy={"max_restarts": 0})
        run.code()
        assert run.event("failed")["detail"] == "F0000 built for AVX"
        assert run.lines.count("F0000 built for AVX") == 1

    @pytest.mark.parametrize(
        "script, code, cause, task_code, suffix",
        [
            ("exit 75", 75, "a peer was lost", 1, ", exit code 75"),
            ("exit 7", 7, "failed with exit code 7", 7, ""),
            ("kill -9 $$", 137, "killed by SIGKILL (out of memory?)", 1, ", exit code 137"),
            ("kill -SEGV $$", 139, "killed by SIGSEGV", 1, ", exit code 139"),
        ],
    )
    def test_failures_are_retried_up_to_the_limit(
        self, trainers: Any, script: str, code: int, cause: str, task_code: int, suffix: str
    ) -> None:
        run = trainers.start_parent(*shell(f"echo attempt $TRAINER_ATTEMPT; {script}"), policy={"max_restarts": 2})
        assert run.code() == task_code
        assert [line for line in run.lines if line.startswith("attempt")] == ["attempt 1", "attempt 2", "attempt 3"]
        restarting = run.events("restarting")
        assert [event["restarts"] for event in restarting] == [1, 2]
        assert [event["attempt"] for event in restarting] == [2, 3]
        assert [event["delay"] for event in restarting] == [0, 0.1]
        assert {(event["exit_code"], event["cause"]) for event in restarting} == {(code, cause)}
        assert run.event("failed")["cause"] == f"{cause}{suffix}; the limit of 2 restarts is reached"
        assert run.event("failed")["exit_code"] == task_code
        assert run.event("failed")["process_exit_code"] == code

    def test_nothing_restarts_with_a_limit_of_0(self, trainers: Any) -> None:
        run = trainers.start_parent(*shell("exit 75"), policy={"max_restarts": 0})
        assert run.code() == 1
        assert len(run.events("started")) == 1

    def test_a_stop_from_outside_does_not_count(self, trainers: Any) -> None:
        script = '[ "$TRAINER_ATTEMPT" -lt 3 ] && exit 143; [ "$TRAINER_ATTEMPT" -lt 4 ] && kill -TERM $$; ' + DONE
        run = trainers.start_parent(*shell(script), policy={"max_restarts": 0})
        assert run.code() == 0
        assert [event["restarts"] for event in run.events("restarting")] == [0, 0, 0]

    def test_a_killed_training_process_restarts_in_place(self, trainers: Any, golden: Golden) -> None:
        run = trainers.start_parent(*GRACEFUL)
        os.kill(int(run.line("ready")), signal.SIGKILL)
        golden(run.event("restarting")["cause"])
        assert run.event("started", 2)["attempt"] == 2
        run.send(signal.SIGTERM)
        assert run.code() == 143

    def test_the_error_of_one_attempt_is_not_reported_for_the_next(self, trainers: Any) -> None:
        script = '[ "$TRAINER_ATTEMPT" = 1 ] && echo it broke > "$TRAINER_ERROR_FILE"; exit 1'
        run = trainers.start_parent(*shell(script), policy={"max_restarts": 1})
        assert run.code() == 1
        assert run.event("restarting")["detail"] == "it broke"
        assert "it broke" not in run.event("failed")["detail"]

    def test_the_same_failure_twice_is_not_retried(self, trainers: Any, golden: Golden) -> None:
        script = 'echo "KeyError: x" > "$TRAINER_ERROR_FILE"; echo "from step 0: KeyError" > "$TRAINER_ERROR_FILE.fingerprint"; exit 1'
        run = trainers.start_parent(*shell(script))
        assert run.code() == 2
        assert len(run.events("started")) == 2
        failed = run.event("failed")
        assert (failed["exit_code"], failed["detail"]) == (2, "KeyError: x")
        golden(failed["cause"])

    def test_different_failures_are_retried(self, trainers: Any) -> None:
        script = 'echo "from step $TRAINER_ATTEMPT: KeyError" > "$TRAINER_ERROR_FILE.fingerprint"; exit 1'
        run = trainers.start_parent(*shell(script), policy={"max_restarts": 3})
        assert run.code() == 1
        assert len(run.events("started")) == 4

    def test_no_process_of_the_group_remains(self, trainers: Any) -> None:
        run = trainers.start_parent(*shell(f"sleep 3600 & echo left $!; {DONE}"))
        grandchild = int(run.line("left"))
        assert run.code() == 0
        until("the grandchild is gone", lambda: not is_alive(grandchild), seen=lambda: run.lines)

    def test_nothing_is_left_in_the_temporary_directory(self, trainers: Any, tmp_path: Path) -> None:
        run = trainers.start_parent(*shell('echo x > "$TRAINER_ERROR_FILE"; exit 2'), env={"TMPDIR": str(tmp_path)})
        assert run.code() == 2
        assert not list(tmp_path.iterdir())


class TestStops:
    """A training process that is asked to stop."""

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    def test_a_signal_lets_training_save_first(self, trainers: Any, number: signal.Signals) -> None:
        run = trainers.start_parent(*GRACEFUL)
        run.line("ready")
        run.send(number)
        assert run.code() == 143
        assert "saved" in run.lines
        assert number.name in run.event("stopping")["reason"]
        assert not run.events("failed")

    def test_a_stop_lasts_at_least_as_long_as_configured(self, trainers: Any) -> None:
        run = trainers.trainer("--", *GRACEFUL, env={"TRAINER_STOP_SECONDS": "1.5", "TRAINER_EVENTS": "json"})
        run.line("ready")
        run.send(signal.SIGTERM)
        stopped_at = run.event("stopping")["time"]
        assert run.code() == 143
        assert time.time() - stopped_at > 1.4

    # Ignores the signal for a while, as TensorFlow's collective runtime does when it starts.
    LATE_HANDLER = (
        "sh",
        "-c",
        'trap "" TERM; echo ready; sleep 1.5; trap "echo saved; exit 143" TERM; echo handles; while :; do sleep 0.05; done',
    )

    def test_a_signal_that_a_training_process_ignored_is_sent_again(self, trainers: Any) -> None:
        run = trainers.start_parent(*self.LATE_HANDLER)
        run.line("ready")
        run.send(signal.SIGTERM)
        assert run.code() == 143
        assert run.lines[-1] == "saved"
        assert len(run.events("stopping")) == 1

    def test_a_users_program_gets_a_signal_once(self, trainers: Any) -> None:
        count = 'trap "echo signal" TERM; echo ready; n=0; while [ $n -lt 50 ]; do sleep 0.05; n=$((n+1)); done; exit 143'
        run = trainers.start_parent(*shell(count), runs_built_in_trainer=False)
        run.line("ready")
        run.send(signal.SIGTERM)
        assert run.code() == 143
        assert run.lines.count("signal") == 1

    def test_work_completed_during_a_stop_is_a_success(self, trainers: Any) -> None:
        run = trainers.start_parent(
            *shell(f"complete() {{ {DONE}; exit 0; }}; trap complete TERM; echo ready; while :; do sleep 0.05; done")
        )
        run.line("ready")
        run.send(signal.SIGTERM)
        assert run.code() == 0

    def test_a_program_without_a_handler_is_stopped_too(self, trainers: Any) -> None:
        run = trainers.start_parent(*shell("echo ready; exec sleep 3600"))
        run.line("ready")
        run.send(signal.SIGTERM)
        assert run.code() == 143

    def test_the_second_signal_kills(self, trainers: Any) -> None:
        run = trainers.start_parent(*IGNORES_SIGTERM)
        child = int(run.line("ready"))
        run.send(signal.SIGTERM)
        run.event("stopping")
        assert is_alive(child)
        run.send(signal.SIGTERM)
        assert run.code() == 137
        assert not is_alive(child)
        assert len(run.events("stopping")) == 1
        assert "second signal" in run.event("failed")["cause"]

    def test_a_task_between_two_attempts_stops_at_once(self, trainers: Any) -> None:
        run = trainers.start_parent(*shell("exit 75"), policy={"first_delay": 30, "longest_delay": 30})
        run.event("restarting", 2)
        run.send(signal.SIGTERM)
        assert run.code() == 143
        assert len(run.events("started")) == 2

    def test_a_failure_during_a_stop_is_reported_and_not_retried(self, trainers: Any, golden: Golden) -> None:
        run = trainers.start_parent(*shell('trap "exit 9" TERM; echo ready; while :; do sleep 0.05; done'))
        run.line("ready")
        run.send(signal.SIGTERM)
        assert run.code() == 9
        golden(run.event("failed")["cause"])
        assert len(run.events("started")) == 1

    def test_a_task_whose_peers_are_missing_stops_soon(self, trainers: Any, ports: Any) -> None:
        run = trainers.start_parent(*IGNORES_SIGTERM, required_peers={"ps-0": ports.address()}, timeouts={"kill_after": 0.3})
        run.line("ready")
        run.send(signal.SIGTERM)
        assert run.code() == 143

    @pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="nohup is tried on Linux")
    def test_nohup_is_honoured(self, trainers: Any) -> None:
        run = trainers.start(["nohup", sys.executable, "-m", "trainer", "--", *GRACEFUL])
        run.line("ready")
        run.send(signal.SIGHUP)
        time.sleep(0.3)
        assert not run.events("stopping")
        run.send(signal.SIGTERM)
        assert run.code() == 143


class TestLifelines:
    """Processes whose parent is gone."""

    def test_a_task_without_its_supervisor_stops(self, trainers: Any, pipe: tuple[int, int]) -> None:
        reading, writing = pipe
        run = trainers.start_parent(*GRACEFUL, lifeline=reading, pass_fds=(reading,))
        run.line("ready")
        os.close(writing)
        assert run.code() == 143
        assert "saved" in run.lines
        assert run.event("stopping")["reason"] == "the run's supervisor is gone"

    def test_a_task_without_its_supervisor_is_killed_if_it_does_not_stop(self, trainers: Any, pipe: tuple[int, int]) -> None:
        reading, writing = pipe
        run = trainers.start_parent(*IGNORES_SIGTERM, lifeline=reading, pass_fds=(reading,), timeouts={"kill_after_supervisor_lost": 0.3})
        run.line("ready")
        os.close(writing)
        assert run.code() == 137

    def test_a_second_signal_does_not_kill_while_a_supervisor_is_there(self, trainers: Any, pipe: tuple[int, int]) -> None:
        """One stop comes twice if something like systemd signals every process; the supervisor kills by itself."""
        reading, _ = pipe
        run = trainers.start_parent(
            *shell("trap 'sleep 0.5; echo saved; exit 143' TERM; echo ready; while :; do sleep 0.05; done"),
            lifeline=reading,
            pass_fds=(reading,),
        )
        run.line("ready")
        run.send(signal.SIGTERM)
        run.event("stopping")
        run.send(signal.SIGTERM)
        assert run.code() == 143
        assert "saved" in run.lines

    def test_the_pipe_is_not_passed_to_the_program(self, trainers: Any, pipe: tuple[int, int]) -> None:
        reading, _ = pipe
        script = f'echo lifeline "[$TRAINER_LIFELINE]"; ls -l /proc/self/fd /dev/fd | grep -c "pipe.*{os.fstat(reading).st_ino}"; exit 0'
        run = trainers.trainer("--", *shell(script), env={"TRAINER_LIFELINE": str(reading)}, pass_fds=(reading,))
        assert run.code() == 0
        assert "lifeline []" in run.lines
        assert run.lines[-1] == "0"

    @pytest.mark.parametrize("runs_built_in_trainer", [True, False], ids=["training process", "user's program"])
    def test_a_killed_parent_takes_its_child_along(self, trainers: Any, *, runs_built_in_trainer: bool) -> None:
        if runs_built_in_trainer:
            program = "import os, time; from trainer import parent_death; parent_death.die_with_parent(); print('ready', os.getpid()); time.sleep(3600)"
            run = trainers.start_parent(sys.executable, "-uc", program)
        else:
            run = trainers.start_parent(*IGNORES_SIGTERM, runs_built_in_trainer=False)
        child = int(run.line("ready"))
        assert is_alive(child)
        run.process.kill()
        until("the child is gone", lambda: not is_alive(child), seen=lambda: run.lines)

    def test_unread_output_does_not_prevent_a_clean_stop(self, tmp_path: Path) -> None:
        saved = tmp_path / "saved"
        script = f'trap "sleep 0.2; touch {saved}; exit 143" TERM; echo ready; while :; do sleep 0.05; done'
        process = subprocess.Popen([sys.executable, "-m", "trainer", "--", "sh", "-c", script], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert {process.stdout.readline()[:5], process.stdout.readline()[:5]} == {b"ready", b'{"eve'}
        process.stdout.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 143
        assert saved.exists()


@pytest.fixture
def unshare() -> list[str]:
    """Return the command that starts a program as process 1; skip the test if this machine does not allow that."""
    command = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
    try:
        subprocess.run([*command, "true"], capture_output=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("this machine does not allow a PID namespace (unshare)")
    return command


def test_a_trainer_as_process_1_reaps_orphans_and_stops_cleanly(trainers: Any, unshare: list[str]) -> None:
    orphan = "(setsid sleep 0.1 &)"
    script = (
        f'trap "echo saved; exit 143" TERM; {orphan}; sleep 0.6; grep -sl "^State:.Z" /proc/[0-9]*/status; '
        "echo ready; kill -TERM 1; while :; do sleep 0.05; done"
    )
    run = trainers.start([*unshare, sys.executable, "-m", "trainer", "--", *shell(script)])
    assert run.code() == 143
    assert "saved" in run.lines
    assert not [line for line in run.lines if line.startswith("/proc")], "a zombie was left"


@pytest.mark.parametrize("init", [[], shell('"$@"; exit $?')], ids=["process 1", "under an init"])
def test_a_trainer_that_fails_in_a_container_leaves_time_to_read_its_error(trainers: Any, unshare: list[str], init: list[str]) -> None:
    wrapper = [*init, "init"] if init else []
    run = trainers.start([*unshare, *wrapper, sys.executable, "-m", "trainer", "--", *shell("exit 2")])
    failed_at = run.event("failed")["time"]
    assert run.code() == 2
    assert time.time() - failed_at > 0.9
