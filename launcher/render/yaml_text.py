"""Readable YAML: named anchors and merge keys, lists of words on one line, blank lines between parts."""

import functools
import io
import re
from collections.abc import Mapping
from typing import Any

import yaml

# PyYAML would write these strings without quotes, and the YAML readers of Compose and Kubernetes (1.1 and 1.2 in Go) take them for another type:
# numbers such as 1e-3, 08, 0o17 and 0X1F, dates such as 2024-6-1, and the booleans y and n.
_OTHER_TYPE_ELSEWHERE = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9_]+)(?:[eE][-+]?[0-9_]+)?"
    r"|[-+]?0[xXoObB][0-9a-fA-F_]+"
    r"|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt ].*)?"
    r"|[yYnN]"
)
_TEXT = "tag:yaml.org,2002:str"


class Merge(str):
    """The key `<<` of YAML 1.1: its value is a mapping whose items are merged into this one. Compose and PyYAML read it."""

    __slots__ = ()


MERGE = Merge("<<")


def text(document: Mapping[str, Any], anchors: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a document as YAML. `anchors` has the names of mappings (by identity) that it contains more than once."""
    names = {id(shared): name for name, shared in anchors.items()}

    class Dumper(yaml.SafeDumper):
        """Writes each shared mapping once, with its anchor; other values each time they occur."""

        def ignore_aliases(self, data: Any) -> bool:
            return id(data) not in names

        def represent_mapping(self, tag: str, mapping: Any, flow_style: bool | None = None) -> yaml.MappingNode:
            node = super().represent_mapping(tag, mapping, flow_style)
            node.anchor_name = names.get(id(mapping))  # type: ignore[attr-defined]
            return node

        def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
            # A command is easiest to read on one line.
            plain = all(isinstance(item, str | int | float) and "\n" not in str(item) for item in sequence)
            return super().represent_sequence(tag, sequence, plain or flow_style)

        def analyze_scalar(self, scalar: str) -> Any:
            return _analysis(scalar) if len(scalar) <= _CACHED_LENGTH else super().analyze_scalar(scalar)

        def generate_anchor(self, node: Any) -> str:
            return str(node.anchor_name)

        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
            del indentless  # lists are indented below their key
            super().increase_indent(flow, indentless=False)

    Dumper.add_representer(Merge, _merge)
    Dumper.add_representer(str, _string)
    dumped: str = yaml.dump(dict(document), Dumper=Dumper, sort_keys=False, width=10**6, allow_unicode=True, default_flow_style=False)
    return dumped


def spaced(dumped: str, *parents: str) -> str:
    """Return the text with a blank line before each top-level key, and before each key right below one of `parents`."""
    lines: list[str] = []
    parent = ""
    for line in dumped.splitlines():
        if top := re.match(r"([\w.-]+):", line):
            parent = top[1]
            lines += [""] * bool(lines)
        elif parent in parents and re.match(r"  [\w.-]+:", line) and not lines[-1].startswith(f"{parent}:"):
            lines.append("")
        lines.append(line)
    return "\n".join(lines) + "\n"


class _Analyzer(yaml.emitter.Emitter):
    """Analyzes scalars as a Dumper does that writes Unicode."""

    def __init__(self) -> None:
        super().__init__(io.StringIO(), allow_unicode=True)


_CACHED_LENGTH = 200  # characters; longer texts, such as files, occur once


@functools.lru_cache(maxsize=1024)
def _analysis(scalar: str) -> Any:
    """Return how a scalar may be written. The same keys and values occur many times, and PyYAML looks at each of their letters."""
    return _Analyzer().analyze_scalar(scalar)


def _merge(_dumper: yaml.SafeDumper, _key: Merge) -> yaml.ScalarNode:
    return yaml.ScalarNode("tag:yaml.org,2002:merge", "<<")


def _string(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    # Text with several lines is easiest to read as a block.
    style = "|" if "\n" in value else '"' if _OTHER_TYPE_ELSEWHERE.fullmatch(value) and _is_plain(dumper, value) else None
    return dumper.represent_scalar(_TEXT, value, style=style)


def _is_plain(dumper: yaml.SafeDumper, value: str) -> bool:
    """Return whether PyYAML would write a text without quotes."""
    return bool(dumper.resolve(yaml.ScalarNode, value, (True, False)) == _TEXT)  # type: ignore[no-untyped-call]  # PyYAML has no types
