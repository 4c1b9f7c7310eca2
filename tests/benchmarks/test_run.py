"""The benchmark's own arithmetic, and that a program which fails or does not train is not measured."""

import sys

import pytest

from benchmarks import contenders, run, task


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


def test_figures_are_medians_and_ratios_above_1_are_in_our_favour() -> None:
    ours = run.summarize([{"steps_per_second": rate, "seconds_to_first_step": 4, "last_loss": 0.1} for rate in (90, 100, 500)])
    peer = run.summarize([{"steps_per_second": 50, "seconds_to_first_step": 6, "last_loss": 0.1}])
    assert (ours.steps_per_second, ours.slowest, ours.fastest) == (100, 90, 500)
    assert run.compare({"ps": ours, "tf1": peer}) == [
        {"ours": "ps", "peer": "tf1", "aim": 1.7, "speed_ratio": 2.0, "first_step_ratio": 1.5}
    ]


@pytest.mark.parametrize(
    "program, said",
    [
        ("import sys; print('no such port'); sys.exit(3)", "exit code 3.*no such port"),
        ("print('all is well')", "exit code 0.*all is well"),
        ('print(\'{"steps_per_second": 9, "first_loss": 2.3, "last_loss": 2.2}\')', "did not train.*2.3 to 2.2"),
    ],
    ids=["fails", "prints no result", "does not learn"],
)
def test_what_did_not_train_is_not_measured(program: str, said: str) -> None:
    broken = contenders.Contender("broken", "a broken program", (sys.executable, "-c", program), 10)
    with pytest.raises(run.MeasurementError, match=f"(?s){said}"):
        run.measure(broken, 10)


def test_every_comparison_names_programs_that_there_are() -> None:
    names = [contender.name for contender in contenders.CONTENDERS]
    assert len(names) == len(set(names))
    assert {name for comparison in contenders.COMPARISONS for name in (comparison.ours, comparison.peer)} <= set(names)
