"""The committed renderings of the examples are current."""

from pathlib import Path

import pytest

from launcher.render import golden

COMMITTED = sorted(path for directory in golden.DIRECTORIES.values() for path in (golden.ROOT / directory).rglob("*.yaml"))


@pytest.fixture(scope="module")
def rendered() -> dict[Path, str]:
    """Render every example once, and not during collection, which each test process does."""
    return dict(golden.files())


def test_exactly_the_rendered_files_are_committed(rendered: dict[Path, str]) -> None:
    assert set(COMMITTED) == set(rendered)


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: str(path.relative_to(golden.ROOT)))
def test_the_committed_file_is_current(path: Path, rendered: dict[Path, str]) -> None:
    assert path.read_text(encoding="utf-8") == rendered[path], "run `make golden` and commit what changes"
