"""`$(NAME)` as Kubernetes replaces it in command, args and the values of env.

https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/: `$(NAME)` of a defined variable
becomes its value, that of another one stays as it is, and `$$` becomes one dollar.
"""

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")


def expand(text: str, values: Mapping[str, str]) -> str:
    """Return the text that a program gets."""
    return _REFERENCE.sub(lambda match: "$" if match[0] == "$$" else values.get(match[1], match[0]), text)


def references(text: str) -> set[str]:
    """Return the names that a text refers to, defined or not."""
    return {match[1] for match in _REFERENCE.finditer(text) if match[1]}
