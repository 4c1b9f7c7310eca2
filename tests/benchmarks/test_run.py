"""The benchmark's own arithmetic, and that a program which fails or does not train is not measured."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import (
    contenders,
    exchange,
    gpu,
    measuring,
    memory,
    ours,
    placement,
    report,
    strategy_ps,
    strategy_rows,
    task,
    tf1_ps,
    tf1_rows,
)


def stopwatch(*marks: tuple[int, float, float], steps: int = 100) -> task.Stopwatch:
    watch = task.Stopwatch(steps)
    for step, loss, when in marks:
        watch.mark(step, loss, when)
    return watch


def test_the_rate_is_measured_after_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_STARTED", "1000")
    result = stopwatch((1, 2.3, 1004.0), (25, 1.0, 1010.0), (75, 0.4, 1011.0), (100, 0.2, 1011.5)).result()
    assert result == {"steps_per_second": 50.0, "seconds_to_first_step": 4.0, "first_loss": 2.3, "last_loss": 0.2}


def test_too_few_marks_are_no_measurement() -> None:
    with pytest.raises(ValueError, match="1 marks after the warm-up of 25%"):
        stopwatch((1, 2.3, 4.0), (100, 0.2, 11.5)).result()


def figures(rate: float, first: float = 4, **more: float) -> measuring.Figures:
    return measuring.Figures({"steps_per_second": rate, "seconds_to_first_step": first, "last_loss": 0.1, **more})


def test_figures_are_medians_and_ratios_above_1_are_in_our_favour() -> None:
    ours = measuring.summarize([figures(90), figures(100), figures(500)])
    peer = measuring.summarize([figures(50, first=6)])
    assert (ours.steps_per_second, ours.slowest, ours.fastest) == (100, 90, 500)
    assert report.compare({"ps": ours, "tf1": peer}) == [
        report.Compared("ps", "tf1", of="steps", aim=1.7, speed_ratio=2.0, first_step_ratio=1.5)
    ]


def test_more_workers_are_compared_by_the_gradients_of_all_of_them() -> None:
    one, sixteen = measuring.summarize([figures(19)]), measuring.summarize([figures(18)], gradients=16)
    (compared,) = report.compare({"allreduce-x1": one, "allreduce-x16": sixteen})
    assert (compared.of, compared.speed_ratio, compared.aim) == ("gradients", 15.16, 15.5)


def test_tables_have_the_columns_that_something_is_known_for(tmp_path: Path) -> None:
    roles = {"worker": memory.Peak(500.0, 300.0)}
    measured = {
        "wire-ps": measuring.summarize([figures(400, accuracy=0.97)]),
        "sync-ours": measuring.summarize([measuring.Figures(figures(100).printed, roles)], gradients=2),
    }
    synchronous, wire, peak = report.sheets(measured, report.compare(measured))
    assert synchronous.columns == ("program", "steps/s", "gradients/s", "first step, s", "last loss")
    assert wire.rows == [("ours: parameter_server, float32", "400", "4.0", "0.1000", "97.00%")]
    assert peak.rows == [("ours: parameter_server, synchronous, 2 of 2 workers", "sync", "worker", "500", "300")]

    page = tmp_path / "performance.md"
    page.write_text("# Speed\n<!-- bench -->\nold\n<!-- /bench -->\nthe end\n", encoding="utf-8")
    report.write(page, "bench", report.markdown([wire], {"cores": 2, "load_before": 0.1}))
    text = page.read_text(encoding="utf-8")
    assert "| ours: parameter_server, float32 | 400 | 4.0 | 0.1000 | 97.00% |\n" in text
    assert "old" not in text
    assert text.startswith("# Speed\n<!-- bench -->\n\ncores 2")
    assert text.endswith("\n<!-- /bench -->\nthe end\n")
    with pytest.raises(ValueError, match="no lines <!-- messages -->"):
        report.write(page, "messages", "")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_memory_is_the_peak_of_the_largest_task_of_each_role() -> None:
    watch = memory.MemoryWatch("BENCH_STARTED=a test's")
    watch.start()
    grow = "import sys, time; held = bytearray(int(sys.argv[1])); held[::4096] = b'x' * len(held[::4096]); time.sleep(2)"
    environment = {**os.environ, "BENCH_STARTED": "a test's"}
    tasks = {"worker-0": 100_000_000, "worker-1": 1, "ps-0": 1}
    processes = [
        subprocess.Popen([sys.executable, "-c", grow, str(size)], env={**environment, "BENCH_TASK": name}) for name, size in tasks.items()
    ]
    for process in processes:
        assert process.wait(30) == 0
    peaks = watch.stop()
    assert set(peaks) == {"worker", "ps"}
    assert 100 < peaks["worker"].own < 200
    assert 1 < peaks["ps"].own < 100


def test_only_names_groups_and_programs() -> None:
    assert [c.name for c in contenders.chosen("sync,single")] == ["single", "sync-ours", "sync-tf1"]
    assert contenders.chosen("") == list(contenders.CONTENDERS)
    with pytest.raises(ValueError, match="no program or group is called sinlge; there are the groups mlp, "):
        contenders.chosen("sinlge,ps")


@pytest.mark.parametrize(
    "program, message",
    [
        ("import sys; print('no such port'); sys.exit(3)", "exit code 3.*no such port"),
        ("print('all is well')", "exit code 0.*all is well"),
        ('print(\'{"steps_per_second": 9, "first_loss": 2.3, "last_loss": 2.2}\')', "did not train.*2.3 to 2.2"),
    ],
    ids=["fails", "prints no result", "does not learn"],
)
def test_a_program_that_did_not_train_is_not_measured(program: str, message: str) -> None:
    broken = contenders.Contender("broken", "mlp", "a broken program", (sys.executable, "-c", program), 10)
    with pytest.raises(measuring.MeasurementError, match=f"(?s){message}"):
        measuring.measure(broken, 10)


def test_every_comparison_names_existing_programs() -> None:
    names = [contender.name for contender in contenders.CONTENDERS]
    assert len(names) == len(set(names))
    assert {name for comparison in contenders.COMPARISONS for name in (comparison.ours, comparison.baseline)} <= set(names)
    assert {contender.group for contender in contenders.CONTENDERS} == set(contenders.GROUPS)


def test_placements_are_read_from_tensorflows_log() -> None:
    log = [
        "I0000 placer.cc:162] MatMul: (MatMul): /job:localhost/replica:0/task:0/device:GPU:0",
        "while/gradients/MatMul_1: (MatMul): /job:localhost/replica:0/task:0/device:CPU:0",
        "tower_1/MatMul: (MatMul): /job:localhost/replica:0/task:0/device:GPU:1",
        "GatherV2: (GatherV2): /job:localhost/replica:0/task:0/device:CPU:0",
    ]
    assert placement.placed(log) == {"MatMul": {"GPU": 2, "CPU": 1}}


def test_the_memory_that_a_task_takes_is_looked_at_on_every_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\necho 90, 100\n[ -f {smi}.seen ] && echo 60, 100 || echo 5, 100\ntouch {smi}.seen\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(ours, "run", lambda _spec, note: note({"event": "progress"}))
    check = gpu.check_memory_growth()
    assert (check.holds, check.seen) == (False, "55 % at most")


@pytest.mark.parametrize("program", [exchange, strategy_ps, strategy_rows, tf1_ps, tf1_rows])
def test_a_program_of_several_processes_takes_the_option_by_which_each_is_started(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["program", "--help"])
    with pytest.raises(SystemExit):
        program.main()
    assert "--job JOB" in capsys.readouterr().out
