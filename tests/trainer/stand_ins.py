"""Programs in place of a training process."""

# Says when it is ready, notes a SIGTERM and leaves with 143, as a training process does that saved its checkpoint.
GRACEFUL = ("sh", "-c", 'trap "echo saved; exit 143" TERM; echo ready $$; while :; do sleep 0.05; done')
DEAF = ("sh", "-c", 'trap "" TERM; echo ready $$; while :; do sleep 0.05; done')
# Reports that its work is done: a line of a shell's script, and of one of Python's that imports os.
_DONE = '{"event": "done", "time": 1, "task": "chief", "step": 1, "seconds": 1, "metrics": {}}'
DONE = f"echo '{_DONE}' > /dev/fd/$TRAINER_EVENTS_FD"
DONE_IN_PYTHON = f"os.write(int(os.environ['TRAINER_EVENTS_FD']), b'{_DONE}\\n')"


def shell(script: str) -> tuple[str, ...]:
    """Return the command that runs a script."""
    return ("sh", "-c", script)
