"""YAML that PyYAML and Kubernetes read alike."""

import pytest
import yaml

from launcher.render.yaml_text import text


@pytest.mark.parametrize("word", ["1e-3", "1E5", "1.e+3", "0o17"])
def test_text_that_is_a_number_to_another_reader_is_quoted(word: str) -> None:
    written = text({"word": word}, {})
    assert written == f'word: "{word}"\n'
    assert yaml.safe_load(written) == {"word": word}


@pytest.mark.parametrize("word", ["e-3", "1e", "train.py", "1e-3s"])
def test_other_text_stays_plain(word: str) -> None:
    assert text({"word": word}, {}) == f"word: {word}\n"
