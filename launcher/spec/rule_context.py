"""The input of the rules between fields."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path as FilePath

from launcher.spec.document import Document
from launcher.spec.models import ClusterSpec
from launcher.spec.problems import FieldError, Path, shown


@dataclass(frozen=True)
class RuleContext:
    """The spec that is checked: its valid part, the document, the paths that are not valid, and the base of relative paths."""

    spec: ClusterSpec
    document: Document
    invalid: frozenset[Path]
    directory: Callable[[Path], FilePath]

    def is_valid(self, path: Path) -> bool:
        """Return whether nothing is wrong at the path, around it, or directly inside it."""
        return not any(path[: len(other)] == other or other[:-1] == path for other in self.invalid)

    def is_empty(self, path: Path) -> bool:
        """Return whether the path is a key without a value."""
        source = self.document.sources.get(path)
        return source is not None and source.text == "" and not source.quoted


def resolved(directory: FilePath, name: str) -> FilePath:
    """Return the absolute path of a name in a spec; `~` is the user's home. Raises FieldError when it cannot be a path."""
    try:
        return FilePath(directory, FilePath(name).expanduser()).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise FieldError(f"{shown(name)} is not a usable path: {error}") from None


def entries_of(directory: FilePath) -> list[FilePath]:
    """Return the sorted entries of a directory; none if it cannot be read."""
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []
