"""Progress and metrics of a run as text for people; measures of training and of evaluations are distinguished."""

from launcher import formats, timestamps
from launcher.runs.status import ENDED, RunStatus

EVALUATION = "evaluation"


def steps(status: RunStatus) -> str:
    """Write the steps: `500 of 2,000 (25%)`; of a run that ended early those done: `500, of 2,000 at most`."""
    if status.step is None:
        return ""
    if not status.steps:
        return f"{status.step:,}"
    if early_end(status):
        return f"{status.step:,}, of {status.steps:,} at most"
    return f"{status.step:,} of {status.steps:,} ({status.step / status.steps:.0%})"


def save_failure(status: RunStatus, now: float) -> str:
    """Write why checkpoints cannot be saved at present, and until when saving is retried; empty if nothing is wrong."""
    failed = status.save_failed
    if failed is None or status.state in ENDED:
        return ""
    since = "" if failed.since is None else f" for {formats.duration(max(0.0, now - failed.since))}"
    needs = "" if failed.step is None else f"; step {failed.step:,} takes {formats.decimal_size(failed.size or 0)}"
    free = "" if failed.free is None else f", {failed.free:,} bytes are free"
    last = "there is no checkpoint" if failed.saved is None else f"the last checkpoint is of step {failed.saved:,}"
    until = "" if failed.until is None else f"; it is retried until {timestamps.rfc3339(failed.until, 'seconds')} (limits.save_timeout)"
    return f"fails{since}: {failed.path}: {failed.cause}{needs}{free}; {last}{until}"


def steps_cell(status: RunStatus) -> str:
    """Write the steps for a table: `500/2,000`; of a run that ended early those done: `500`."""
    if status.step is None:
        return ""
    return f"{status.step:,}/{status.steps:,}" if status.steps and not early_end(status) else f"{status.step:,}"


def early_end(status: RunStatus) -> str:
    """Write where and why a run has ended before its last step; empty if it has not."""
    if not status.ended_early or (status.step is not None and status.step == status.steps):
        return ""
    return f"at step {status.step or 0:,}: {status.ended_early}"


def speed(status: RunStatus) -> str:
    """Write how fast a run trains: `1,200 examples/s, 12 ms a step`."""
    parts = [] if status.examples_per_second is None else [f"{status.examples_per_second:,.0f} examples/s"]
    if status.seconds_per_step is not None:
        parts.append(f"{formats.seconds_each(status.seconds_per_step)} a step")
    return ", ".join(parts)


def training(status: RunStatus) -> str:
    """Write loss and metrics of training: `loss 0.12  accuracy 0.96`."""
    metrics = status.training_metrics if status.metrics_of == EVALUATION else status.training_metrics or status.metrics
    loss = {} if status.loss is None else {"loss": status.loss}
    return formats.metrics({**loss, **metrics})


def evaluation(status: RunStatus) -> str:
    """Write the metrics of the last evaluation, with its step; empty if there was none."""
    if status.metrics_of != EVALUATION or not status.metrics:
        return ""
    after = "" if status.evaluated_step is None else f"  after step {status.evaluated_step:,}"
    return formats.metrics(status.metrics) + after


def metrics_cell(status: RunStatus) -> str:
    """Write the metrics for a table, with their source: `evaluation: loss 0.2  accuracy 0.95`."""
    return f"{status.metrics_of}: {formats.metrics(status.metrics)}" if status.metrics else ""
