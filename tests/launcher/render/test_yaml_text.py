"""YAML that PyYAML and Kubernetes read alike."""

import pytest
import yaml

from launcher.render.yaml_text import text


@pytest.mark.parametrize("word", ["1e-3", "1E5", "0o17", "08", "-09", "0X1F", "0B1", "1_0e3", "2024-6-1", "y", "N"])
def test_text_that_is_of_another_type_to_another_reader_is_quoted(word: str) -> None:
    written = text({"word": word}, {})
    assert written == f'word: "{word}"\n'
    assert yaml.safe_load(written) == {"word": word}


@pytest.mark.parametrize("word", ["7", "017", "1.5", "1.e+3", "08.5", "2024-06-01", "yes"])
def test_text_that_is_of_another_type_to_pyyaml_is_quoted_as_it_does(word: str) -> None:
    assert text({"word": word}, {}) == f"word: '{word}'\n"


@pytest.mark.parametrize("word", ["e-3", "1e", "train.py", "1e-3s", "0x1g", "08a", "2024-6", "yn"])
def test_other_text_stays_plain(word: str) -> None:
    assert text({"word": word}, {}) == f"word: {word}\n"
