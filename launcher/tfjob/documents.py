"""Reads the TFJobs of a file, which may have several documents, Lists and other objects, with their source locations."""

import re
from dataclasses import dataclass, replace
from typing import Any

import yaml

from launcher.errors import Problem, SpecError
from launcher.spec import syntax
from launcher.spec.document import Document, Reader
from launcher.spec.problems import all_of, shown
from launcher.tfjob import templates

VERSIONS = ("kubeflow.org/v1", "kubeflow.org/v1beta2", "kubeflow.org/v1beta1")
SUBJECT = "the TFJob"  # what `SpecError` says the problems are in
_EXPECTED = "a TFJob: apiVersion kubeflow.org/v1, v1beta2 or v1beta1, kind TFJob"
_INT, _STR = "tag:yaml.org,2002:int", "tag:yaml.org,2002:str"
# Kubernetes reads 0400, a file mode, as an octal number.
_OCTAL = re.compile(r"0o?[0-7]+\Z")


@dataclass(frozen=True)
class OtherObject:
    """An object that is not a TFJob: it is not converted."""

    kind: str
    name: str
    line: int


@dataclass(frozen=True)
class Contents:
    """The objects of a file."""

    jobs: list[tuple[str, Document]]  # with their names
    others: list[OtherObject]


def read(data: bytes, file: str) -> Contents:
    """Return the TFJobs of a file. Raises SpecError if it has none or one of another version, is a template, or is not YAML."""
    text = data.decode("utf-8", "replace")
    try:
        nodes = syntax.parse_all(data, file)
    except SpecError as error:
        problems = [replace(problem, expected=problem.expected and _EXPECTED) for problem in error.problems]
        raise SpecError(templates.in_text(text, file, []) or problems, SUBJECT) from None
    jobs: list[tuple[str, Document]] = []
    others: list[OtherObject] = []
    objects = [item for root in nodes for item in _items(root)]
    if problems := templates.in_text(text, file, objects):
        raise SpecError(problems, SUBJECT)
    for node in objects:
        kind, version = _scalar(node, "kind"), _scalar(node, "apiVersion")
        if kind == "TFJob" and version in VERSIONS:
            _convert_octal(node, set())
            document = Reader(file).read(node)
            jobs.append((_job_name(document), document))
        elif kind == "TFJob":
            message = f"{shown(version)} is not a supported version of TFJob" if version else "the TFJob has no apiVersion"
            faulty = _child(node, "apiVersion") or node
            problems.append(_problem(faulty, file, "apiVersion", message, "write kubeflow.org/v1, if it is a TFJob of that version"))
        else:
            others.append(OtherObject(kind or "something without a kind", _name(node), node.start_mark.line + 1))
    if not jobs and not problems:
        problems.append(_no_jobs(nodes, others, file))
    if problems:
        raise SpecError(problems, SUBJECT)
    return Contents(jobs, others)


def _items(node: yaml.Node) -> list[yaml.Node]:
    """Return the objects of a document: the items of a List, or the document itself."""
    inner = _child(node, "items")
    if (_scalar(node, "kind") or "").endswith("List") and isinstance(inner, yaml.SequenceNode):
        return list(inner.value)
    return [node]


def _child(node: yaml.Node | None, key: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for name, value in node.value if isinstance(name, yaml.ScalarNode) and name.value == key), None)


def _scalar(node: yaml.Node | None, key: str) -> str | None:
    value = _child(node, key)
    return str(value.value) if isinstance(value, yaml.ScalarNode) else None


def _name(node: yaml.Node) -> str:
    metadata = _child(node, "metadata")
    return _scalar(metadata, "name") or _scalar(metadata, "generateName") or ""


def _job_name(document: Document) -> str:
    """Return the name of a TFJob, which may come from a merge key (`<<`)."""
    metadata = document.value.get("metadata")
    fields = metadata if isinstance(metadata, dict) else {}
    return str(fields.get("name") or fields.get("generateName") or "")


def _no_jobs(nodes: list[yaml.Node], others: list[OtherObject], file: str) -> Problem:
    if not nodes:
        return Problem(file, 1, 1, "", "the file is empty", _EXPECTED, "name the file with the TFJob")
    kinds = all_of(dict.fromkeys(other.kind for other in others)) if others else "a list without objects"
    return _problem(nodes[0], file, "", f"there is no TFJob in the file; it has {kinds}", "name the file with the TFJob")


def _problem(node: yaml.Node, file: str, path: str, message: str, remedy: str) -> Problem:
    mark = node.start_mark
    return Problem(file, mark.line + 1, mark.column + 1, path, message, _EXPECTED, remedy)


def _convert_octal(node: Any, seen: set[int]) -> None:
    """Turn octal numbers into decimal ones, as specs refuse octal numbers."""
    if id(node) in seen:  # an alias
        return
    seen.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        if node.tag in {_INT, _STR} and not node.style and _OCTAL.match(node.value) and node.value != "0":
            node.tag, node.value = _INT, str(int(node.value.replace("o", ""), 8))
    elif isinstance(node, yaml.MappingNode):
        for _, value in node.value:
            _convert_octal(value, seen)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _convert_octal(item, seen)
