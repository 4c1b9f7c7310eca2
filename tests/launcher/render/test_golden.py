"""The rendered examples in the repository are what the renderers make of the examples."""

from pathlib import Path

import pytest

from launcher.render import golden

COMMITTED = sorted(path for directory in golden.DIRECTORIES.values() for path in (golden.ROOT / directory).rglob("*.yaml"))


@pytest.fixture(scope="module")
def rendered() -> dict[Path, str]:
    """Render every example: once, and not where tests are only collected, which each test process does."""
    return dict(golden.files())


def test_each_file_that_is_rendered_is_committed_and_no_other(rendered: dict[Path, str]) -> None:
    assert set(COMMITTED) == set(rendered)


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: str(path.relative_to(golden.ROOT)))
def test_the_committed_file_is_what_is_rendered(path: Path, rendered: dict[Path, str]) -> None:
    assert path.read_text(encoding="utf-8") == rendered[path], "run `make golden` and commit what changes"
