"""Our side of the benchmark: `launcher up` on a spec, timed from outside by the progress events it prints.

Steps count as in the peers: of all workers together on parameter_server, of each worker for an all-reduce.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import task
from trainer import events

# One core a task, as the peers' environment has it.
ROLES = {
    "single": {"chief": {"cpu": 1}},
    "multi_worker_mirrored": {"chief": {"cpu": 1}, "worker": {"cpu": 1, "replicas": task.WORKERS - 1}},
    "parameter_server": {"chief": {"cpu": 1}, "ps": {"cpu": 1}, "worker": {"cpu": 1, "replicas": task.WORKERS}},
}


def spec(strategy: str, steps: int) -> dict[str, object]:
    """Return a spec that trains and does nothing else: the peers neither save nor evaluate."""
    return {
        "version": 1,
        "name": f"bench-{strategy.replace('_', '-')}",
        "strategy": strategy,
        "roles": ROLES[strategy],
        "train": {
            "workload": "mnist_mlp",
            "steps": steps,
            "batch_size": task.BATCH,
            "params": {"hidden_units": task.HIDDEN, "learning_rate": task.LEARNING_RATE},
            "checkpoint": {"every_seconds": 3600.0},
            "evaluate": {"every_steps": 0},
            "summaries": {"every_steps": 0, "profile_every_steps": 0},
        },
    }


def main() -> None:
    """Run one strategy and print the result."""
    options = task.arguments(__doc__, strategy="single")
    stopwatch = task.Stopwatch(options.steps)
    troubles: list[str] = []
    launcher = Path(sys.executable).with_name("launcher")
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "spec.yaml")
        file.write_text(json.dumps(spec(options.strategy, options.steps)), encoding="utf-8")
        run = subprocess.Popen(
            [str(launcher), "up", str(file), "--json", "--runs", f"{directory}/runs"], cwd=directory, stdout=subprocess.PIPE, text=True
        )
        with run:
            for line in run.stdout or ():
                event = events.parse(line)
                if event and event["event"] == "progress" and "local_step" not in event:
                    stopwatch.mark(event["step"], event["loss"], event["time"])
                elif event and event["event"] in {"failed", "restarting"}:
                    troubles.append(f"{event['task']} {event['event']}: {event['cause']}: {event.get('detail', '')}")
        if run.returncode or troubles:
            sys.exit("\n".join([*troubles, f"launcher up ended with exit code {run.returncode}"]))
    stopwatch.print()


if __name__ == "__main__":
    main()
