"""Programs in place of a training process."""

# Says when it is ready, notes a SIGTERM and leaves with 143, as a training process does that saved its checkpoint.
GRACEFUL = ("sh", "-c", 'trap "echo saved; exit 143" TERM; echo ready $$; while :; do sleep 0.05; done')
DEAF = ("sh", "-c", 'trap "" TERM; echo ready $$; while :; do sleep 0.05; done')


def shell(script: str) -> tuple[str, ...]:
    """Return the command that runs a script."""
    return ("sh", "-c", script)
