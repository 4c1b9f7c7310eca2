"""How an error is written on a terminal."""

import pytest

from launcher.cli.errors import wrapped

BUILD = "the image could not be built:\n  | RUN   pip install something-long\n  | exit 1\nsee `docker info --all` for more"


@pytest.mark.parametrize(
    "width, text",
    [
        (None, BUILD),
        (20, "the image\ncould not be built:\n  | RUN   pip install something-long\n  | exit 1\nsee\n`docker info --all`\nfor more"),
    ],
)
def test_the_output_of_a_program_keeps_its_lines(width: int | None, text: str) -> None:
    assert wrapped(BUILD, width, len("remedy: ")) == text
