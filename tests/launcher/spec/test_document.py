"""YAML as specs read it: values, and the source locations of keys and values."""

from typing import Any

import pytest

from launcher.errors import SpecError
from launcher.spec import syntax
from launcher.spec.document import Document, Reader, without


def read(text: str) -> Document:
    return Reader("a.yaml").read(syntax.parse(text.encode(), "a.yaml"))


@pytest.mark.parametrize(
    "written, value",
    [
        ("7", 7),
        ("0x1f", 31),
        ("1_000", 1000),
        ("0", 0),
        ("0.5", 0.5),
        ("1e-3", 0.001),
        ("1e3", 1000.0),
        ("'1e3'", "1e3"),
        ("true", True),
        ("no", False),
        ("'no'", "no"),
        ("~", None),
        ("", None),
        ("''", ""),
        ("2024-01-01", "2024-01-01"),
        ("12:30", "12:30"),
        ("1:30.5", "1:30.5"),
        ("text", "text"),
        ("=", "="),
        ("!!str 5", "5"),
        ("[1, {b: c}]", [1, {"b": "c"}]),
    ],
)
def test_values(written: str, value: Any) -> None:
    document = read(f"a: {written}")
    assert document.value == {"a": value}
    assert type(document.value["a"]) is type(value)
    assert document.findings == []


@pytest.mark.parametrize(
    "written", ["010", "-007", ".inf", ".nan", "9" * 30, "0x" + "f" * 30, "!!binary aGk=", "!!set {a}", "!x 1", '"\\0"', "!!int ''"]
)
def test_values_that_mean_nothing_are_left_out_and_reported(written: str) -> None:
    document = read(f"a: {written}\nb: 1")
    assert document.value == {"b": 1}
    assert [finding.path for finding in document.findings] == [("a",)]
    assert document.unusable == {("a",)}


def test_locations_count_from_one_and_fall_back_to_the_enclosing_one() -> None:
    document = read("a:\n  b: [1, two]\n  c:\n")
    locations = {
        path: (document.location(path, "key"), document.location(path))
        for path in [("a", "b"), ("a", "b", 1), ("a", "c"), ("a", "missing")]
    }
    assert {path: [(location.line, location.column) for location in both] for path, both in locations.items()} == {
        ("a", "b"): [(2, 3), (2, 6)],
        ("a", "b", 1): [(2, 10), (2, 10)],
        ("a", "c"): [(3, 3), (3, 3)],
        ("a", "missing"): [(1, 1), (1, 1)],
    }


def test_merged_keys_lose_to_the_mappings_own_and_keep_their_location() -> None:
    document = read("one: &one {a: 1, b: 1}\ntwo: &two {b: 2, c: 2}\nall:\n  <<: [*one, *two]\n  a: 3\n")
    assert document.value["all"] == {"a": 3, "b": 1, "c": 2}
    assert document.location(("all", "c")).line == 2
    assert document.location(("all", "a")).line == 5


@pytest.mark.parametrize(
    "text",
    [
        "a: &a {b: *a}",
        "a: &a [*a]",
        "a: &a {<<: *a}",
        "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 40)),
        "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 2000)),
        "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: *a{n - 1}}}\n" for n in range(1, 2000)),
    ],
)
def test_cyclic_and_deeply_nested_aliases_are_refused(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(text)
    assert "alias" in caught.value.problems[0].message


def test_without_leaves_out_paths_and_shares_nothing_with_the_original() -> None:
    value = {"a": {"b": 1, "c": [1, 2]}, "d": 2}
    copy = without(value, [("a", "b"), ("d",), ("nowhere", "x")])
    copy["a"]["c"].append(3)
    assert copy == {"a": {"c": [1, 2, 3]}}
    assert value == {"a": {"b": 1, "c": [1, 2]}, "d": 2}
