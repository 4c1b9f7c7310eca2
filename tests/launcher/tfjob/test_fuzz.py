"""TFJobs, mutated at random: each is imported, or refused with problems, and no field is dropped silently."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.errors import Problem, SpecError
from launcher.spec.problems import path_text
from launcher.tfjob.convert import Conversion, convert

HERE = Path(__file__).parent
CASES = sorted(HERE.glob("accepted/*.yaml"))
TREES = [list(yaml.load_all(case.read_bytes().replace(b"2024-05-01T10:00:00Z", b"now"), Loader=yaml.CSafeLoader)) for case in CASES]
JUNK: st.SearchStrategy[Any] = st.sampled_from(
    [
        None,
        True,
        0,
        -1,
        7,
        1.5,
        "",
        "x",
        "${N}",
        "$(N)",
        "Always",
        [],
        [1],
        ["x"],
        [{}],
        [None],
        {},
        {"x": 1},
        {"name": "x"},
        {"name": None},
    ]
)

# Fields that get another name or form in the spec, or that a run has anyway.
CONVERTED = {
    ("apiVersion",): None,
    ("kind",): None,
    ("name",): {"tensorflow"},
    ("containerName",): {"tensorflow"},
    ("annotations", "kubectl.kubernetes.io/default-container"): {"tensorflow"},
    ("replicas",): {"1"},
    ("restartPolicy",): None,
    ("successPolicy",): None,
    ("mountPath",): {"/tmp/"},
    ("containerPort",): {"2222"},
    ("ports", "name"): {"tfjob-port"},
    ("operator",): {"Equal"},
    ("suspend",): {"False"},
}


def imported(documents: list[Any]) -> Conversion:
    data = "\n---\n".join(json.dumps(document) for document in documents).encode()
    return convert(data, "tfjob.yaml", directory=HERE, output="cluster.yaml")


def paths(tree: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield every path of a tree."""
    yield path
    if isinstance(tree, dict | list):
        for key, below in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from paths(below, (*path, key))


def value_at(tree: Any, path: tuple[str | int, ...]) -> Any:
    for part in path:
        tree = tree[part]
    return tree


@given(data=st.data())
@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_a_mutated_tfjob_is_imported_or_refused(data: st.DataObject) -> None:
    documents = copy.deepcopy(data.draw(st.sampled_from(TREES)))
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from([path for path in paths(documents) if len(path) > 1]))
        value_at(documents, path[:-1])[path[-1]] = copy.deepcopy(data.draw(JUNK))
    problems: list[Problem] | None = None
    try:
        imported(documents)
    except SpecError as error:
        problems = error.problems
    assert problems != []
    assert all(problem.message and problem.remedy and problem.line for problem in problems or [])


@pytest.mark.parametrize("documents", TREES, ids=[case.stem for case in CASES])
def test_every_value_is_carried_over_or_reported(documents: list[Any]) -> None:
    result = imported(documents)
    [tfjob] = [one for document in documents if document for one in document.get("items", [document]) if one["kind"] == "TFJob"]
    spec = yaml.load(result.text, Loader=yaml.CSafeLoader)
    texts = [str(value_at(spec, path)) for path in paths(spec)] + [str(path[-1]) for path in paths(spec) if path]
    reported = [remark.path for remark in result.remarks]
    lost = [
        path
        for path in paths(tfjob)
        if path
        and not isinstance(value := value_at(tfjob, path), dict | list | None)
        and not any(_is_converted(path, str(value), keys, values) for keys, values in CONVERTED.items())
        and str(value) not in texts
        and str(value) not in "\n".join(texts)
        and "$$" not in str(value)  # test_cases.py compares texts with dollars
        and not any(path_text(path).startswith(one) for one in reported)
    ]
    assert lost == [], [path_text(path) for path in lost]


def _is_converted(path: tuple[str | int, ...], value: str, keys: tuple[str, ...], values: set[str] | None) -> bool:
    names = tuple(part for part in path if isinstance(part, str))
    return names[-len(keys) :] == keys and (values is None or value in values)
