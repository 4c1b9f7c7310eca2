"""A spec as commented YAML."""

import re
import textwrap
from typing import Any

from launcher.render.yaml_text import text
from launcher.spec.schema import SCHEMA_FILE
from launcher.tfjob.draft import Draft
from launcher.tfjob.reading import grouped
from launcher.tfjob.summary import Difference

_ORDER = (
    "version",
    "name",
    "strategy",
    "image",
    "security",
    "command",
    "success",
    "roles",
    "volumes",
    "init_containers",
    "sidecars",
    "tf_config",
    "limits",
    "kubernetes",
)
_ROLE_ORDER = (
    "replicas",
    "image",
    "command",
    "args",
    "working_dir",
    "env",
    "cpu",
    "memory",
    "gpus",
    "restart",
    "init_containers",
    "sidecars",
)
_KUBERNETES_ORDER = (
    "namespace",
    "queue",
    "priority_class",
    "node_selector",
    "tolerations",
    "image_pull_policy",
    "image_pull_secrets",
    "env_from",
    "ttl",
    "labels",
    "annotations",
    "overrides",
)
_PARTS = ("roles", "volumes", "init_containers", "sidecars", "limits", "kubernetes")
_WIDTH = 118

# A field of the spec -> the comment above it.
_COMMENTS: dict[tuple[str, ...], str] = {
    ("strategy",): "Decides which tasks wait for each other and restart together; the program chooses its own tf.distribute strategy.",
    ("security",): "User, capabilities and file system as the image has them. `hardened` is safer, where the image can run so.",
    (
        "kubernetes",
        "overrides",
    ): "Settings that no field of the spec has, merged into the pods as `kubectl patch` does; the task's container is `trainer`.",
}


def written(draft: Draft, file: str, differences: list[Difference]) -> str:
    """Return the text of the spec."""
    spec = {key: draft.spec[key] for key in _ORDER if key in draft.spec}
    spec["roles"] = {role.name: _ordered(spec["roles"][role.name], _ROLE_ORDER) for role in draft.roles}
    if "kubernetes" in spec:
        spec["kubernetes"] = _ordered(spec["kubernetes"], _KUBERNETES_ORDER)
    comments = _COMMENTS | {("roles", role.name): f"The TFJob's {role.kind}, line {draft.reading.line(role.path)}" for role in draft.roles}
    head = f"# yaml-language-server: $schema={SCHEMA_FILE}\n{_head(draft, file, differences)}"
    return head + _commented(text(spec, {}), comments)


def _ordered(mapping: dict[str, Any], order: tuple[str, ...]) -> dict[str, Any]:
    return {key: mapping[key] for key in (*order, *mapping) if key in mapping}


def _head(draft: Draft, file: str, differences: list[Difference]) -> str:
    made = f"Made by `launcher import` from {_printable(file)}."
    lines = [f"# {made}", "#"]
    if draft.reading.remarks:
        lines.append("# Of the TFJob's fields these are other than they were, or left out:")
        for line_numbers, paths, remark in grouped(draft.reading.remarks):
            comment = f"line {line_numbers}, {_printable(paths)}: {_printable(remark.message)}"
            lines += textwrap.wrap(comment, _WIDTH, initial_indent="#   ", subsequent_indent="#     ", break_long_words=False)
        lines.append("#")
    lines.append("# The run differs from the TFJob's:")
    for difference in differences:
        comment = f"{difference.about}: {_printable(difference.message)}"
        lines += textwrap.wrap(comment, _WIDTH, initial_indent="#   ", subsequent_indent="#     ", break_long_words=False)
    return "\n".join(lines) + "\n"


def _printable(words: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in words)


def _commented(dumped: str, comments: dict[tuple[str, ...], str]) -> str:
    """Return a dumped spec with the comments above its keys, and a blank line above its parts."""
    lines: list[str] = []
    section = ""
    for line in dumped.split("\n"):
        top, inner = re.match(r"([a-z_]+):", line), re.match(r"  ([a-z_]+):", line)
        if top is not None:
            section = top[1]
            comment = comments.get((section,))
            # Never below an empty line: that is the end of a text, to which another one would be added.
            if lines and lines[-1].strip() and (comment or section in _PARTS):
                lines.append("")
            lines += _comment(comment or "")
        elif inner is not None:
            lines += [f"  {part}" for part in _comment(comments.get((section, inner[1]), ""))]
        lines.append(line)
    return "\n".join(lines)


def _comment(words: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(words, _WIDTH, break_long_words=False)]
