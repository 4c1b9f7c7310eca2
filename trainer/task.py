"""The training process, `python -m trainer.task`: imports TensorFlow, does the task's work, ends with its exit code.

Started by the parent process (`trainer`), which has checked TF_CONFIG and the settings before.
"""

import os
import signal
import sys
import time
import traceback
from types import FrameType
from typing import NoReturn

from trainer import error_file, lifeline, quiet, user_errors
from trainer.error_line import error_line
from trainer.events import Reporter
from trainer.exit_codes import ExitCode
from trainer.settings import TrainerSettings
from trainer.strategies import SERVED
from trainer.tf_config import TaskConfig, parse


class _Stop:
    """Remembers that this process was asked to stop."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        return self.asked

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True


# Set where the user has not said otherwise; each with its reason.
_ENVIRONMENT = {
    "KERAS_BACKEND": "tensorflow",
    # A peer that is not there yet is waited for, not an error.
    "GRPC_FAIL_FAST": "use_caller",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    # A GPU's memory is taken as it is needed, not all at once: tasks may share one. TensorFlow's servers know no other way to say so.
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    # TensorFlow's own default on x86; said aloud, it is not announced in every task's log.
    "TF_ENABLE_ONEDNN_OPTS": "1",
}

# With one inter-op thread, a server's data pipeline and the loop that reads it wait for each other for ever.
_FEWEST_INTEROP_THREADS = 4


def main() -> NoReturn:
    """Run the task and leave by os._exit: TensorFlow's threads may wait for peers that are gone for ever."""
    lifeline.die_with_parent()
    began = time.time()
    stop = _Stop()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop.handle)
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    task = parse(os.environ.get("TF_CONFIG"))
    settings = TrainerSettings.model_validate_json(os.environ["TRAINER_SETTINGS"])
    threads = os.environ.get("TF_NUM_INTEROP_THREADS", "")
    if settings.strategy in SERVED and threads.isdecimal() and 0 < int(threads) < _FEWEST_INTEROP_THREADS:
        os.environ["TF_NUM_INTEROP_THREADS"] = str(_FEWEST_INTEROP_THREADS)
    report = Reporter(task.name)
    code = _run(task, settings, report, stop, began)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run(task: TaskConfig, settings: TrainerSettings, report: Reporter, stop: _Stop, began: float) -> ExitCode:
    with quiet.importing():
        from trainer import roles
        from trainer.engine.job import job
        from trainer.engine.session import PeerLostError
        from trainer.workloads.errors import WorkloadError

        roles.import_for(settings.strategy, task.role)

    module, colon, _ = settings.train.workload.partition(":") if settings.train else ("", "", "")
    users = module if colon else ""  # the module of a workload of the user's own
    try:
        return roles.run(roles.Context(task, job(settings), report, stop, began))
    except PeerLostError as error:
        _tell(str(error))
        return ExitCode.PEER_LOST
    except WorkloadError as error:
        if error.__cause__ is not None and (frames := user_errors.user_frames(error.__cause__, users)):
            print(user_errors.shown(error.__cause__, frames, task.name), file=sys.stderr)
        _tell(str(error))
        return ExitCode.WRONG_CONFIGURATION
    except Exception as error:  # noqa: BLE001 - whatever it is becomes an exit code and an error line
        frames = user_errors.user_frames(error, users) if users else []
        if frames and os.environ.get("TRAINER_TRACEBACK") != "full":
            print(user_errors.shown(error, frames, task.name), file=sys.stderr)
        else:
            traceback.print_exc()
        error_file.write(error_line(error) + user_errors.place(error, frames), user_errors.fingerprint(error, frames, report.start))
        return ExitCode.FAILURE


def _tell(line: str) -> None:
    """Show the error line, and leave it for the parent to report."""
    print(line, file=sys.stderr)
    error_file.write(line)


if __name__ == "__main__":
    main()
