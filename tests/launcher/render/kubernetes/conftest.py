"""Fixtures that render a spec for Kubernetes."""

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.plan.spec_file import plan_file
from launcher.render.kubernetes import manifests
from launcher.render.kubernetes.objects import Run
from launcher.render.targets import RenderSource, target

Objects = dict[tuple[str, str], dict[str, Any]]
Rendered = Callable[..., Objects]

HEAD = "version: 1\nname: digits\n"
TRAIN = "train: {workload: mnist_mlp}\n"
CLUSTER = "strategy: parameter_server\nroles: {chief: {}, ps: {replicas: 1}, worker: {replicas: 2}, evaluator: {}}\n" + TRAIN


@pytest.fixture(scope="session")
def texts() -> dict[tuple[str, str], str]:
    """Return the texts that were rendered, by target and spec: many tests look at the same."""
    return {}


@pytest.fixture
def text(tmp_path: Path, texts: dict[tuple[str, str], str]) -> Callable[..., str]:
    """Return a function that renders a spec, passed without its head, to YAML text."""

    def render(spec: str, to: str = "kubernetes", head: str = HEAD) -> str:
        file = tmp_path / "digits.yaml"
        file.write_text(head + textwrap.dedent(spec))
        depends_on_no_file = [*tmp_path.iterdir()] == [file] and str(tmp_path) not in spec
        key = (to, file.read_text())
        if depends_on_no_file and key in texts:
            return texts[key]
        parsed, plan = plan_file(file, [], "kubernetes", tmp_path / "runs")
        whole = target(to).render(RenderSource(parsed, plan, tmp_path, "launcher render digits.yaml"))
        if depends_on_no_file:
            texts[key] = whole
        return whole

    return render


@pytest.fixture
def run_for(tmp_path: Path) -> Callable[[str], Run]:
    """Return a function that plans a spec, passed without its head, and returns the input of the renderers."""

    def run(spec: str) -> Run:
        file = tmp_path / "digits.yaml"
        file.write_text(HEAD + spec)
        parsed, plan = plan_file(file, [], "kubernetes", tmp_path / "runs")
        return manifests.run_of(RenderSource(parsed, plan, tmp_path))

    return run


@pytest.fixture
def rendered(text: Callable[..., str]) -> Rendered:
    """Return a function that renders a spec and returns its objects by kind and name."""

    def objects(spec: str = CLUSTER, to: str = "kubernetes", head: str = HEAD) -> Objects:
        documents = list(yaml.load_all(text(spec, to, head), Loader=yaml.CSafeLoader))
        by_name = {(one["kind"], one["metadata"]["name"]): one for one in documents}
        assert len(by_name) == len(documents)
        return by_name

    return objects


def cluster_name(objects: Objects) -> str:
    """Return the name of the ConfigMap with the addresses."""
    (name,) = [name for kind, name in objects if kind == "ConfigMap" and name.startswith("digits-cluster-")]
    return name


def pod(objects: Objects, role: str) -> dict[str, Any]:
    """Return the pod template of a role's Job."""
    template = objects["Job", f"digits-{role}"]["spec"]["template"]
    assert isinstance(template, dict)
    return template


def container(objects: Objects, role: str) -> dict[str, Any]:
    """Return the container of a role's pods."""
    (only,) = pod(objects, role)["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def pods(objects: Objects) -> Iterator[dict[str, Any]]:
    """Yield every pod template."""
    for (kind, _), one in objects.items():
        if kind in {"Job", "Deployment"}:
            yield one["spec"]["template"]
