"""Problems as users read them."""

import pytest

from launcher.errors import Problem, did_you_mean, nearest
from launcher.spec.problems import all_of, any_of, named, path_text, render, shown


def test_a_problem_is_a_line_with_its_location_followed_by_the_remedy() -> None:
    complete = Problem("a.yaml", 3, 7, "name", "it is wrong", "another", "write another")
    minimal = Problem("b.yaml", 1, 1, "", "there is no such file")
    assert render([complete, minimal]) == (
        "a.yaml:3:7: name: it is wrong\n    expected: another\n    to fix: write another\nb.yaml:1:1: there is no such file"
    )


@pytest.mark.parametrize(
    "path, text",
    [((), ""), (("a", "b_c"), "a.b_c"), (("command", 0), "command[0]"), (("env", "a.b", "c"), 'env["a.b"].c'), (("a", "x\n"), 'a["x\\n"]')],
)
def test_paths_are_written_as_users_write_them(path: tuple[str | int, ...], text: str) -> None:
    assert path_text(path) == text


@pytest.mark.parametrize(
    "word, spelling",
    [
        ("wroker", "worker"),
        ("Workers", "worker"),
        ("batch-size", "batch_size"),
        ("stepps", "steps"),
        ("STEPS", "steps"),
        ("colour", None),
        ("", None),
    ],
)
def test_the_nearest_spelling_is_found(word: str, spelling: str | None) -> None:
    assert nearest(word, ["worker", "batch_size", "steps"]) == spelling
    assert did_you_mean(word, ["worker", "batch_size", "steps"]) == (f"did you mean {spelling}? " if spelling else "")


def test_values_are_shown_in_one_short_line_that_any_terminal_can_print() -> None:
    assert shown("größe") == '"größe"'
    assert shown("a\nb\ud800") == '"a\\nb\\ud800"'
    assert len(shown("x" * 500)) == 60
    assert (shown(True), shown(None), shown([1]), shown({})) == ("true", "null", "a list", "a mapping")
    assert (named("a-b"), named("a\nb"), named("")) == ("`a-b`", '"a\\nb"', '""')


def test_names_are_joined() -> None:
    assert (any_of(["a"]), any_of(["a", "b", "c"]), all_of(["a", "b", "c"])) == ("a", "a, b or c", "a, b and c")
