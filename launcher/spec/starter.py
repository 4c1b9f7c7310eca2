"""The commented spec that `launcher init` writes."""

from launcher.errors import UsageError
from launcher.spec import names
from launcher.spec.problems import FieldError
from launcher.spec.rules import check_workload
from trainer.settings import Train
from trainer.strategies import TRAINING_STRATEGIES
from trainer.workloads.catalog import CATALOG, with_defaults

_HEAD = """\
# A distributed TensorFlow cluster; `launcher schema` and docs/spec.md describe every field.
#   launcher validate FILE     checks it
#   launcher plan FILE         shows the tasks and their addresses
#   launcher up FILE           runs it on this machine
version: 1
name: {name}
# How the tasks work together: single, mirrored, multi_worker_mirrored, parameter_server or manual.
strategy: {strategy}

# Give each role what its tasks need: {{replicas: 2, cpu: 4, memory: 8Gi, gpus: 1}}
roles:
{roles}
"""
_ROLES = {
    "single": ("chief: {}                # the one process that trains",),
    "mirrored": ("chief: {gpus: 0}         # the one process that trains, on all its devices",),
    "multi_worker_mirrored": ("worker: {replicas: 2}    # each trains on its own batches; worker-0 saves checkpoints and writes logs",),
    "parameter_server": (
        "chief: {}                # coordinates, saves checkpoints and writes logs",
        "ps: {replicas: 1}        # hold the model's variables",
        "worker: {replicas: 2}    # compute gradients, each at its own pace",
    ),
    "manual": (
        "chief: {}                # connects to the others and runs the program",
        "worker: {replicas: 2}    # run the operations that the program puts on them",
    ),
}
_EVALUATOR = "# evaluator: {}          # evaluates each checkpoint beside the training"

_TRAIN = """\
# The training of the built-in trainer. `command: [python, train.py]` instead runs a program of your own.
train:
  workload: {workload}
  steps: {steps}
  batch_size: {batch_size}            # examples that a replica takes in one step
  {params}
  # data: ./data             # a directory with the data set; `synthetic` when left out
  # checkpoint: {{every_seconds: 30, keep: 3}}
  # evaluate: {{every_steps: 500}}
{code}
"""
_PROGRAM = """\
# Which program the chief runs. `command: [python, program.py]` instead runs a program of your own on every task.
train:
  workload: {workload}
  {params}
{code}
"""
_CODE = """
# The directory with your module, from this file.
code: .
"""
_COMMAND = """\
# Any program that reads TF_CONFIG; it finds where to write in RUN_DIR.
command: [python, train.py]
# The directory with your code, from this file.
code: .

"""
_TAIL = """\
# tensorboard: {port: 6006}
# limits: {max_restarts: 10, start_timeout: 10m, deadline: 24h}
"""


def starter_spec(name: str, workload: str | None, strategy: str) -> str:
    """Return a commented spec with this name and strategy; without a workload its `command` is train.py.

    Raises UsageError when the name, the workload or the strategy is not valid.
    """
    try:
        # The workload first: the name may be derived from it.
        if workload is not None:
            check_workload(workload)
        names.check_run_name(name)
    except FieldError as error:
        choices = f"; expected {error.expected}" if error.expected else ""
        raise UsageError(f"{error.message}{choices}", error.remedy) from None
    if strategy not in _ROLES:
        raise UsageError(f"there is no strategy {strategy!r}", f"use one of: {', '.join(_ROLES)}")
    entry = CATALOG.get(workload or "")
    if entry and strategy not in entry.strategies:
        raise UsageError(f"{workload} does not run with strategy {strategy}", f"use one of: {', '.join(entry.strategies)}")
    trains = strategy in TRAINING_STRATEGIES
    roles = "\n".join(f"  {line}" for line in (*_ROLES[strategy], *[_EVALUATOR] * trains))
    work = _COMMAND if workload is None else _train(workload, _TRAIN if trains else _PROGRAM)
    return _HEAD.format(name=_quoted(name), strategy=strategy, roles=roles) + "\n" + work + _TAIL


def _quoted(name: str) -> str:
    """Return a name as YAML text: in quotes if YAML 1.1 reads the word as something else."""
    return f'"{name}"' if name in {"true", "false", "yes", "no", "on", "off", "null"} else name


def _train(workload: str, template: str) -> str:
    entry = CATALOG.get(workload)
    defaults = with_defaults(Train(workload=workload))
    params = ", ".join(f"{key}: {value}" for key, value in entry.params().model_dump().items()) if entry else "units: 100"
    return template.format(
        workload=workload,
        steps=defaults.steps,
        batch_size=defaults.batch_size,
        params=f"# params: {{{params}}}",
        code="" if entry else _CODE,
    )
