"""The training process, `python -m trainer.task`: imports TensorFlow, does the task's work, exits with its exit code.

Started by the parent process (`trainer`), which has checked TF_CONFIG and the settings before.
"""

import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from trainer import error_file, parent_death, stack_signal, user_errors
from trainer.captured_import import capture_import
from trainer.error_line import error_line
from trainer.events import Reporter
from trainer.exit_codes import ExitCode
from trainer.port_holder import PortHolder
from trainer.settings import TrainerSettings
from trainer.stack_reading import Frame
from trainer.strategies import SERVER_STRATEGIES, STRATEGIES
from trainer.tf_config import TaskConfig, parse

_PIPE = 1 << 16  # bytes that a pipe holds
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopFlag:
    """Records a request to stop this process, for any thread, also while the main thread is inside TensorFlow.

    Python runs signal handlers only in the main thread, once it returns from C; a signal's number is in the wake-up pipe at once.
    """

    def __init__(self) -> None:
        self.requested = False
        self._numbers, writing_end = os.pipe()
        for end in (self._numbers, writing_end):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writing_end, warn_on_full_buffer=False)
        # A forked process shares the pipe: a SIGTERM for it, as multiprocessing sends, is not for us.
        os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
        for number in _STOP_SIGNALS:
            signal.signal(number, self._handle)

    def __call__(self) -> bool:
        """Return whether a stop was requested."""
        with suppress(BlockingIOError):  # the pipe is empty
            # The pipe also has the numbers of signals that the user's code handles.
            if not set(_STOP_SIGNALS).isdisjoint(os.read(self._numbers, _PIPE)):
                self.requested = True
        return self.requested

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True


# Defaults; the user's own values stay.
ENVIRONMENT_DEFAULTS = {
    "KERAS_BACKEND": "tensorflow",
    # Wait for a peer that is not there yet instead of failing.
    "GRPC_FAIL_FAST": "use_caller",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    # Allocate a GPU's memory as needed, not all at once: tasks may share a GPU. TensorFlow's servers have no other setting for it.
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    # TensorFlow's own default on x86. TensorFlow logs it nevertheless, see captured_import.py.
    "TF_ENABLE_ONEDNN_OPTS": "1",
    # Once a worker has come back, TensorFlow has the next call on each worker wait until no call is in progress. Synchronous rounds
    # wait for each worker, so there would be a deadlock. That wait is not needed: a call uses only resources of its own worker.
    "TF_ENABLE_ASYNC_WAIT_FOR_REMOTE_FUNCTION": "false",
}


def main() -> NoReturn:
    """Run the task and exit by os._exit: TensorFlow's threads may wait for peers that are gone forever."""
    parent_death.die_with_parent()
    stack_signal.register()
    began = time.time()
    stop = StopFlag()
    for name, value in ENVIRONMENT_DEFAULTS.items():
        os.environ.setdefault(name, value)
    task = parse(os.environ.get("TF_CONFIG"))
    settings = TrainerSettings.model_validate_json(os.environ["TRAINER_SETTINGS"])
    threads, least = os.environ.get("TF_NUM_INTEROP_THREADS", ""), STRATEGIES[settings.strategy].min_inter_op_threads
    if settings.strategy in SERVER_STRATEGIES and threads.isdecimal() and 0 < int(threads) < least:  # 0 lets TensorFlow choose
        os.environ["TF_NUM_INTEROP_THREADS"] = str(least)
    report = Reporter(task.name)
    port = PortHolder(task.address, settings.start_timeout)
    # The chief's servers end if it does not answer for long: so it answers before TensorFlow's import.
    if settings.strategy in SERVER_STRATEGIES and task.is_chief:
        port.open()
    code = _import_and_run(task, settings, port, report, stop, began)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _import_and_run(
    task: TaskConfig, settings: TrainerSettings, port: PortHolder, report: Reporter, stop: StopFlag, began: float
) -> ExitCode:
    try:
        with capture_import():
            from trainer import roles

            roles.import_for(settings.strategy, task.role)
    except Exception as error:  # noqa: BLE001 - as in _run
        return _failed(error, "", task, start=0)
    return _run(task, settings, port, report, stop, began)


def _run(task: TaskConfig, settings: TrainerSettings, port: PortHolder, report: Reporter, stop: StopFlag, began: float) -> ExitCode:
    from trainer import roles
    from trainer.engine.session import DivergedError, PeerLostError, SaveError, UnsavedStopError
    from trainer.engine.train_config import train_config
    from trainer.workloads.errors import WorkloadError

    module, colon, _ = settings.train.workload.partition(":") if settings.train else ("", "", "")
    users = module if colon else ""  # the module of a workload of the user's own
    pid = os.getpid()
    try:
        return roles.run(roles.RoleContext(task, train_config(settings), port, report, stop, began))
    except PeerLostError as error:
        _show_error(str(error), error_file.start_step_fingerprint(report.start_step))
        return ExitCode.PEER_LOST
    except UnsavedStopError as error:
        _show_error(str(error))
        return ExitCode.FAILURE
    except (DivergedError, SaveError, WorkloadError) as error:
        if isinstance(error, WorkloadError) and error.__cause__ is not None:
            _show_traceback(error.__cause__, user_errors.user_frames(error.__cause__, users), task.name, full_if_none=False)
        _show_error(str(error), f"{error_file.FINAL_PREFIX}{error.reason}")
        return ExitCode.FINAL_FAILURE  # the exit code is final by itself: there may be no error file
    except SystemExit as error:
        if os.getpid() != pid:
            raise  # this is a process that the user's code has forked
        if stop():
            return ExitCode.STOPPED  # by a signal handler of the user's
        _show_error(_exit_message(error, users, trains=STRATEGIES[settings.strategy].trains), error_file.CODE_ENDED_PROCESS)
        return ExitCode.FINAL_FAILURE
    except Exception as error:  # noqa: BLE001 - any error becomes an exit code and an error line
        return _failed(error, users, task, report.start_step or 0)


def _failed(error: Exception, users: str, task: TaskConfig, start: int) -> ExitCode:
    """Show an error and leave its line and fingerprint for the parent. `users` is the user's module, empty if only the trainer's code has run."""
    frames = user_errors.user_frames(error, users) if users else []
    _show_traceback(error, frames, task.name, full_if_none=True)
    line = error_line(error) + user_errors.location(error, frames) + _remedy(error)
    error_file.write(line, user_errors.fingerprint(error, frames, start))
    return ExitCode.FAILURE


def _show_traceback(error: BaseException, frames: list[Frame], task: str, *, full_if_none: bool) -> None:
    """Print the user's frames of a traceback; print all frames if TRAINER_TRACEBACK is full, or, with `full_if_none`, if none is the user's."""
    if os.environ.get("TRAINER_TRACEBACK") == "full" or (full_if_none and not frames):
        traceback.print_exception(error)
    elif frames:
        print(user_errors.format_traceback(error, frames, task), file=sys.stderr)


def _exit_message(error: SystemExit, users: str, *, trains: bool) -> str:
    """Return the message that the user's code has called sys.exit: the location, and what to write instead."""
    called = (
        f"sys.exit({'' if error.code is None else repr(error.code)}){user_errors.location(error, user_errors.user_frames(error, users))}"
    )
    early = "To end training early, set `self.model.stop_training = True` in a callback; put" if trains else "Put"
    return (
        f"your code calls {called}, which ends this task before its work is done. "
        f'{early} what only a script does below `if __name__ == "__main__":`; raise an error where the task cannot do its work'
    )


def _remedy(error: Exception) -> str:
    """Return the remedy for an error of batching, else nothing."""
    if "tensorflow" not in sys.modules:
        return ""
    from trainer.workloads import pipeline

    return pipeline.batching_remedy(error)


def _show_error(line: str, fingerprint: str = "") -> None:
    """Print the error line, and write it to the error file, which the parent reports."""
    print(line, file=sys.stderr)
    error_file.write(line, fingerprint)


if __name__ == "__main__":
    main()
