"""`$(NAME)` as Kubernetes replaces it in command, args and the values of env.

https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/: `$(NAME)` of a defined variable
becomes its value, that of another one stays as it is, and `$$` becomes one dollar.
"""

import re
from collections.abc import Callable, Mapping

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")


def expand(text: str, values: Mapping[str, str]) -> str:
    """Return the text that a program gets."""
    return _REFERENCE.sub(lambda match: "$" if match[0] == "$$" else values.get(match[1], match[0]), text)


def completed(text: str, values: Mapping[str, str], *, kept: Callable[[str], bool]) -> str:
    """Return a text for Kubernetes to replace the names that are `kept`; the others are replaced now, or stay as they are then."""

    def replaced(match: re.Match[str]) -> str:
        name = match[1]
        if name in values:
            return values[name].replace("$", "$$")
        return match[0] if match[0] == "$$" or kept(name) else f"${match[0]}"

    return _REFERENCE.sub(replaced, text)


def references(text: str) -> set[str]:
    """Return the names that a text refers to, defined or not."""
    return {match[1] for match in _REFERENCE.finditer(text) if match[1]}
