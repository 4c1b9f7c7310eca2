"""Programs in place of a training process."""

# Prints that it is ready, catches SIGTERM and exits 143, as a training process does after it has saved a checkpoint.
GRACEFUL = ("sh", "-c", 'trap "echo saved; exit 143" TERM; echo ready $$; while :; do sleep 0.05; done')
IGNORES_SIGTERM = ("sh", "-c", 'trap "" TERM; echo ready $$; while :; do sleep 0.05; done')
# Reports that its work is done: a line of a shell script, and a line of a Python script that imports os.
_DONE = '{"event": "done", "time": 1, "task": "chief", "step": 1, "seconds": 1, "metrics": {}}'
DONE = f"echo '{_DONE}' > /dev/fd/$TRAINER_EVENTS_FD"
DONE_IN_PYTHON = f"os.write(int(os.environ['TRAINER_EVENTS_FD']), b'{_DONE}\\n')"


def shell(script: str) -> tuple[str, ...]:
    """Return the command that runs a script."""
    return ("sh", "-c", script)
