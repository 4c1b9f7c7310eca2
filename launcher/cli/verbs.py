"""The table of verbs: where each one's function is, and the line `launcher --help` shows for it.

The line stands here as well as in the function's docstring so that `--help` imports no verb; a test holds them equal.
"""

import keyword
from dataclasses import dataclass


@dataclass(frozen=True)
class Verb:
    """One verb: its panel in the help, its module, its function there, and its line of help."""

    panel: str
    module: str
    function: str
    summary: str


def _verb(name: str, panel: str, summary: str) -> tuple[str, Verb]:
    # Module and function have the verb's name, as far as Python lets them.
    word = f"{name}_" if keyword.iskeyword(name) else name
    return name, Verb(panel, f"launcher.cli.{word}", word, summary)


SPEC = "Describe a run"
RUN = "Run it"
WATCH = "Look at it"

VERBS: dict[str, Verb] = dict(
    [
        _verb("init", SPEC, "Write a commented starter spec."),
        _verb("import", SPEC, "Write a spec from a TFJob, and say how the run will differ."),
        _verb("validate", SPEC, "Check specs; every problem is reported at once."),
        _verb("plan", SPEC, "Show what a spec becomes: tasks, addresses, resources, TF_CONFIG."),
        _verb("render", SPEC, "Write a spec for Docker Compose or Kubernetes, to run by itself."),
        _verb("schema", SPEC, "Print the spec's JSON Schema, for editors."),
        _verb("image", RUN, "Build the image that containers start from."),
        _verb("doctor", RUN, "Examine whether a place can run clusters; with a spec, whether it fits."),
        _verb("diff", RUN, "Show what `up` would change."),
        _verb("up", RUN, "Run a spec, and follow it until it is done."),
        _verb("wait", RUN, "Wait until a run has ended; its result is the exit code."),
        _verb("down", RUN, "Stop a run after a last checkpoint."),
        _verb("ls", WATCH, "List the runs."),
        _verb("status", WATCH, "Show how a run and each of its tasks are."),
        _verb("logs", WATCH, "Show what the tasks write."),
        _verb("get", WATCH, "Copy a run's model, checkpoints, logs or results here."),
        _verb("tensorboard", WATCH, "Open TensorBoard on a run's logs."),
    ]
)
