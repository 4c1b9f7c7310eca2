"""Reports of a program that places its operations itself."""

from typing import Any

import numpy as np

from tests.trainer.engine.test_loop import Output
from trainer.engine.manual import program
from trainer.events import Reporter


def test_a_program_may_count_its_steps_in_numpy() -> None:
    output = Output()
    progress: Any = program._ProgressReporter(Reporter("chief", output))
    progress(np.int64(3), np.int64(9), {"loss": np.float32(0.5)})
    progress.flush()
    (event,) = output.events("progress")
    assert (event["step"], event["steps"], event["metrics"]) == (3, 9, {"loss": 0.5})
