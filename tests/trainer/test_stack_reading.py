"""The activity of a task, read from stacks as faulthandler writes them."""

from pathlib import Path

import pytest

import trainer
from trainer.stack_reading import read_activity

OWN = str(Path(trainer.__file__).parent)

PACKAGES = "/venv/lib/python3.11/site-packages/tensorflow/python"
GRAPH_CALL = [
    (f"{PACKAGES}/eager/execute.py", 53, "quick_execute"),
    (f"{PACKAGES}/eager/polymorphic_function/tracing_compilation.py", 132, "call_function"),
    (f"{OWN}/engine/replicated.py", 106, "run"),
]
BEGIN = [(f"{OWN}/engine/loop.py", 68, "run"), ("<frozen runpy>", 88, "_run_code")]
WAIT = [("/usr/lib/python3.11/threading.py", 327, "wait"), ("/usr/lib/python3.11/threading.py", 1002, "_bootstrap")]


def stacks(*threads: list[tuple[str, int, str]]) -> str:
    """Write threads as faulthandler does; the last is the main one."""
    parts = []
    for number, frames in enumerate(threads):
        head = "Current thread" if number == len(threads) - 1 else "Thread"
        lines = "".join(f'  File "{file}", line {line} in {function}\n' for file, line, function in frames)
        parts.append(f"{head} 0x00007f{number:010x} (most recent call first):\n{lines}")
    return "\n".join(parts)


@pytest.mark.parametrize(
    "threads, expected",
    [
        ([[("/code/model.py", 12, "call"), *BEGIN]], "in its code, model.py:12 in call"),
        ([[("/home/me/trainer/task.py", 12, "main"), *BEGIN]], "in its code, task.py:12 in main"),
        ([[("<string>", 1, "<module>")]], "in its code, <string>:1 in <module>"),
        ([[(f"{PACKAGES}/ops/script_ops.py", 269, "__call__"), *WAIT], [("/code/a.py", 1, "f"), *BEGIN]], "in its code, a.py:1 in f"),
        (
            [[("/code/model.py", 14, "wait"), (f"{PACKAGES}/ops/script_ops.py", 269, "__call__")], GRAPH_CALL + BEGIN],
            "in its code, model.py:14 in wait",
        ),
        (
            [
                [
                    ("/code/data.py", 7, "rows"),
                    (f"{PACKAGES}/data/ops/from_generator_op.py", 198, "generator_py_func"),
                    (f"{PACKAGES}/ops/script_ops.py", 269, "__call__"),
                ],
                GRAPH_CALL + BEGIN,
            ],
            "in its input, data.py:7 in rows",
        ),
        (
            [[(f"{PACKAGES}/data/ops/iterator_ops.py", 770, "_next_internal"), *BEGIN]],
            "in its input, iterator_ops.py:770 in _next_internal",
        ),
        ([[(f"{OWN}/engine/collectives/tcp_all_reduce.py", 90, "_receive"), *WAIT], GRAPH_CALL + BEGIN], "waiting for other tasks"),
        ([[(f"{OWN}/engine/parameter_server/worker_pool.py", 242, "take_within"), *BEGIN]], "waiting for other tasks"),
        (
            [[(f"{PACKAGES}/framework/func_graph.py", 1059, "func_graph_from_py_func"), ("/code/a.py", 1, "f"), *BEGIN]],
            "tracing or compiling",
        ),
        ([WAIT, GRAPH_CALL + BEGIN], "inside TensorFlow, execute.py:53 in quick_execute"),
        ([[("/code/data.py", 3, "prefetch"), *WAIT], GRAPH_CALL + BEGIN], "inside TensorFlow, execute.py:53 in quick_execute"),
    ],
    ids=[
        "code",
        "code in a trainer",
        "code of a command line",
        "main first",
        "python in a graph",
        "generator",
        "iterator",
        "all-reduce",
        "workers",
        "traces",
        "tensorflow",
        "a thread of its own",
    ],
)
def test_the_stacks_show_the_activity_of_a_task(threads: list[list[tuple[str, int, str]]], expected: str) -> None:
    assert str(read_activity(stacks(*threads))).partition(", func_graph")[0] == expected


def test_a_process_that_writes_nothing_is_silent() -> None:
    assert read_activity("").kind == "silent"
