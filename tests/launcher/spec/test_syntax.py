"""Arbitrary text: limits are enforced, and without libyaml the pure Python parser reports the same errors."""

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


def test_a_byte_order_mark_is_skipped() -> None:
    node = syntax.parse(b"\xef\xbb\xbfversion: 1", "a.yaml")
    assert node.value[0][0].value == "version"


def test_a_huge_file_is_not_parsed() -> None:
    assert "larger than 1024 KiB" in problem(b"a: " + b"x" * syntax.MAX_BYTES).message


@pytest.mark.parametrize(
    "text", ["[" * 500_000, "{a: " * 200_000, "- " * 400_000, "? " * 400_000, "a: [" + "1," * 300_000, "a: &a [1]\n" * 80_000]
)
def test_hostile_text_is_refused_at_once(text: str) -> None:
    started = time.process_time()  # of this process only: the machine may be busy
    assert problem(text.encode()).remedy
    assert time.process_time() - started < 5


def test_without_libyaml_errors_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    invalid = [b"a: [1", b"a: 'b", b"a: b: c", b"a:\n\tb: 1", b"a: *b", b"a: 1\n---\nb: 2", b"[" * 50, b"", b"- a"]
    with_libyaml = [problem(data) for data in invalid]
    monkeypatch.setattr(syntax, "_FastLoader", yaml.SafeLoader)
    assert [problem(data) for data in invalid] == with_libyaml


def test_an_error_that_no_table_explains_has_a_remedy_too() -> None:
    unknown = problem(b"%YAML 3.0\n---\na: 1\n")
    assert unknown.message.startswith("not valid YAML: found incompatible YAML document")
    assert unknown.remedy


def test_parse_all_reads_several_documents() -> None:
    text = b"---\na: 1\n---\n---\n# nothing\n---\n- b\n"
    assert [type(node) for node in syntax.parse_all(text, "x.yaml")] == [yaml.MappingNode, yaml.SequenceNode]
    with pytest.raises(SpecError) as caught:
        syntax.parse_all(b"a: 1\n---\n\tb: 1\n", "x.yaml")
    assert caught.value.problems[0].line == 3
