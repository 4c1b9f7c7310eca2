"""The rendered examples in the repository are what the renderers make of the examples."""

from pathlib import Path

import pytest

from launcher.render import golden

FILES = dict(golden.files())


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(golden.ROOT)))
def test_the_committed_file_is_what_is_rendered(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == FILES[path], "run `make golden` and commit what changes"


def test_there_are_no_others() -> None:
    there = {path for directory in golden.DIRECTORIES.values() for path in (golden.ROOT / directory).rglob("*.yaml")}
    assert there == set(FILES)
