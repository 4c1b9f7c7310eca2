"""Valid specs, mutated at random: each is loaded, or refused with problems."""

import copy
import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.errors import Problem, SpecError
from launcher.spec.loader import digest, dump, load
from launcher.spec.models import ClusterSpec
from launcher.spec.problems import render

ROOT = Path(__file__).parents[3]
EXAMPLES = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples").glob("*.yaml"))]
FULL = """\
version: 1
name: full
strategy: parameter_server
image: registry.example.com:5000/team/trainer:1.0
roles:
  chief: {cpu: 2, memory: 4Gi, gpus: 1}
  worker: {replicas: 4, cpu: 500m, memory: 1.5Gi, gpus: 1, gpu_type: NVIDIA-H100-80GB-HBM3}
  ps: &small {replicas: 2, cpu: 2}
  evaluator: {<<: *small, replicas: 1}
train:
  workload: mnist
  steps: 2000
  batch_size: 100
  params: {hidden_units: 100, learning_rate: 1e-3}
  data: synthetic
  seed: 7
  steps_per_execution: 50
  checkpoint: {every_steps: 10, every_seconds: 2.5, keep: 2}
  evaluate: {every_steps: 5, batch_size: 10}
  summaries: {every_steps: 10, profile_every_steps: 0}
env: {A: "1", B: text}
storage: {size: 20Gi, class: nfs, access: ReadWriteMany}
tensorboard: {port: 6006, host: 0.0.0.0}
limits: {max_restarts: 10, start_timeout: 10m, deadline: 24h, orphan_timeout: 90s, grace_period: 1m30s}
kubernetes:
  namespace: team
  queue: gpus
  priority_class: high
  node_selector: {example.com/pool: a100}
  tolerations: [{key: gpu, operator: Exists, effect: NoSchedule}]
"""
TEXTS = [FULL, *EXAMPLES]
TREES = [yaml.load(text, Loader=yaml.CSafeLoader) for text in TEXTS]

KEYS = [
    "version",
    "name",
    "roles",
    "worker",
    "ps",
    "replicas",
    "train",
    "workload",
    "mnist",
    "params",
    "command",
    "sync",
    "cpu",
    "4Gi",
    "10m",
    "a.b:C",
]
PITFALLS = ["", "no", "null", "~", "1e3", "0x1f", "<<", "=", ".inf", "2024-01-01", "12:30", "\0", "\x85", "\u2028", "\ufeff"]
words = st.sampled_from([*KEYS, *PITFALLS])
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.dates(min_value=dt.date(1900, 1, 1))
    | st.binary(max_size=8)
    | words
    | st.text(max_size=12)
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words | st.integers(), inner, max_size=3), max_leaves=6
)


def containers(tree: Any) -> list[Any]:
    """Return every mapping and list of a tree."""
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return ([tree] if isinstance(tree, dict | list) and tree else []) + [container for part in inner for container in containers(part)]


@st.composite
def mutated_trees(draw: st.DrawFn) -> str:
    tree = copy.deepcopy(draw(st.sampled_from(TREES)))
    for _ in range(draw(st.integers(1, 4))):
        target = draw(st.sampled_from(containers(tree) or [tree]))
        keys = list(target) if isinstance(target, dict) else list(range(len(target)))
        match draw(st.sampled_from(["delete", "replace", "insert", "swap"])):
            case "delete" if keys:
                del target[draw(st.sampled_from(keys))]
            case "replace" if keys:
                target[draw(st.sampled_from(keys))] = draw(values)
            case "swap" if len(keys) > 1:
                one, other = draw(st.sampled_from(keys)), draw(st.sampled_from(keys))
                target[one], target[other] = target[other], target[one]
            case _ if isinstance(target, dict):
                target[draw(words)] = draw(values)
            case _:
                target.append(draw(values))
    return yaml.dump(tree, Dumper=yaml.CSafeDumper, sort_keys=False, default_flow_style=draw(st.sampled_from([None, False, True])))


@st.composite
def mutated_texts(draw: st.DrawFn) -> bytes:
    text = draw(st.sampled_from(TEXTS)).encode()
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 20)))
        new = draw(
            st.binary(max_size=4)
            | st.text(max_size=6).map(lambda letters: letters.encode("utf-8", "surrogatepass"))
            | st.text("{}[]:,-&*!|>'\"%@`#\n\t ?~<.\\", max_size=6).map(str.encode)
            | words.map(str.encode)
        )
        text = text[:start] + new + text[end:]
    return text


def outcome(file: Path, set_options: list[str]) -> tuple[ClusterSpec | None, list[Problem]]:
    try:
        return load(file, set_options), []
    except SpecError as error:
        return None, error.problems


def check(data: bytes, directory: Path, set_options: list[str] | None = None) -> None:
    """Load a spec: it is refused with problems that can be printed, or it is the same after it was written and read."""
    file = directory / "spec.yaml"
    file.write_bytes(data)
    spec, problems = outcome(file, set_options or [])
    for problem in problems:
        assert problem.message
        assert problem.line >= 1
        assert problem.column >= 1
    assert bool(render(problems).encode()) == (spec is None)  # a terminal can show them
    if spec is not None:
        written = json.loads(json.dumps(dump(spec), allow_nan=False))
        reloaded = ClusterSpec.model_validate(written)
        assert dump(reloaded) == written
        assert digest(reloaded) == digest(spec)


thoroughly = settings(max_examples=250, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.mark.parametrize("text", TEXTS)
def test_the_specs_that_are_mutated_are_valid(text: str, tmp_path: Path) -> None:
    if code := yaml.load(text, Loader=yaml.CSafeLoader).get("code"):
        (tmp_path / code).symlink_to(ROOT / "examples" / code)
    (tmp_path / "spec.yaml").write_text(text, encoding="utf-8")
    assert load(tmp_path / "spec.yaml").version == 1


@thoroughly
@given(text=mutated_trees())
def test_mutated_values(text: str, tmp_path: Path) -> None:
    check(text.encode("utf-8", "surrogatepass"), tmp_path)


@thoroughly
@given(data=mutated_texts())
def test_mutated_text(data: bytes, tmp_path: Path) -> None:
    check(data, tmp_path)


paths = st.sampled_from(
    ["train.steps", "roles.worker", "roles.ps.replicas", "name", "env.A", "train", "command", "code", "train.data", "a..b", "", "roles"]
)


@thoroughly
@given(
    set_options=st.lists(
        st.tuples(paths | st.text(max_size=8), st.sampled_from(["=", "", "=="]), words | st.text(max_size=10)).map("".join), max_size=3
    )
)
def test_set_options(set_options: list[str], tmp_path: Path) -> None:
    check(FULL.encode(), tmp_path, set_options)
