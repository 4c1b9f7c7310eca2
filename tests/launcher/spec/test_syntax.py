"""Text that may be anything: limits hold, and the pure Python parser serves where libyaml is missing."""

import time

import pytest
import yaml

from launcher.errors import Problem, SpecError
from launcher.spec import syntax


def problem(data: bytes) -> Problem:
    with pytest.raises(SpecError) as caught:
        syntax.parse(data, "a.yaml")
    assert len(caught.value.problems) == 1
    return caught.value.problems[0]


def test_a_byte_order_mark_is_no_part_of_the_text() -> None:
    node = syntax.parse(b"\xef\xbb\xbfversion: 1", "a.yaml")
    assert node.value[0][0].value == "version"


def test_a_huge_file_is_not_parsed() -> None:
    assert "larger than 1024 KiB" in problem(b"a: " + b"x" * syntax.MAX_BYTES).message


@pytest.mark.parametrize(
    "text", ["[" * 500_000, "{a: " * 200_000, "- " * 400_000, "? " * 400_000, "a: [" + "1," * 300_000, "a: &a [1]\n" * 80_000]
)
def test_hostile_text_is_refused_at_once(text: str) -> None:
    started = time.process_time()  # not what others on a busy machine take
    assert problem(text.encode()).remedy
    assert time.process_time() - started < 5


def test_without_libyaml_errors_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = [b"a: [1", b"a: 'b", b"a: b: c", b"a:\n\tb: 1", b"a: *b", b"a: 1\n---\nb: 2", b"[" * 50, b"", b"- a"]
    fast = [problem(data) for data in wrong]
    monkeypatch.setattr(syntax, "_FastLoader", yaml.SafeLoader)
    assert [problem(data) for data in wrong] == fast


def test_what_no_table_words_still_says_where_and_what_to_do() -> None:
    found = problem(b"%YAML 3.0\n---\na: 1\n")
    assert found.message.startswith("not valid YAML: found incompatible YAML document")
    assert found.remedy


def test_a_file_may_hold_several_documents_where_that_is_asked_for() -> None:
    text = b"---\na: 1\n---\n---\n# nothing\n---\n- b\n"
    assert [type(node) for node in syntax.parse_all(text, "x.yaml")] == [yaml.MappingNode, yaml.SequenceNode]
    with pytest.raises(SpecError) as caught:
        syntax.parse_all(b"a: 1\n---\n\tb: 1\n", "x.yaml")
    assert caught.value.problems[0].line == 3
