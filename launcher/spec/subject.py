"""A spec under examination: what the rules between its fields look at."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path as FilePath

from launcher.spec.document import Document
from launcher.spec.models import ClusterSpec
from launcher.spec.problems import Path


@dataclass(frozen=True)
class Subject:
    """A spec under examination: its valid part, the document, what is not valid, and the base of relative paths."""

    spec: ClusterSpec
    document: Document
    broken: frozenset[Path]
    directory: Callable[[Path], FilePath]

    def known(self, path: Path) -> bool:
        """Tell whether nothing is wrong at the path, around it, or directly inside it."""
        return not any(path[: len(gone)] == gone or gone[:-1] == path for gone in self.broken)
