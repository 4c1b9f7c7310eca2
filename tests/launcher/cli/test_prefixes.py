"""The `worker-0 | ` before each line."""

import itertools

from launcher.cli.prefixes import Prefixes


def test_prefixes_are_as_wide_as_the_longest_name() -> None:
    prefixes = Prefixes(["chief", "worker-10"])
    assert prefixes.plain("chief") + "x" == "chief     | x"
    assert prefixes.plain("worker-10") + "x" == "worker-10 | x"


def test_tasks_beside_each_other_have_different_colours() -> None:
    tasks = [f"worker-{index}" for index in range(25)]
    prefixes = Prefixes(tasks)
    assert all(prefixes.colour(one) != prefixes.colour(other) for one, other in itertools.pairwise(tasks))


def test_a_program_keeps_its_colours_but_does_not_move_the_cursor() -> None:
    line = Prefixes(["chief"]).line("chief", "\x1b[31mred\x1b[0m \x1b[2J\x1b[1;1Hhome")
    assert line.plain == "chief | red home"
    assert [line.plain[span.start : span.end] for span in line.spans if str(span.style) == "color(1)"] == ["red"]
