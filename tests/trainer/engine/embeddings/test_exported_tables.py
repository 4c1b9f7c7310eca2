"""The notice of export formats that a model with sharded tables cannot have; test_embeddings.py has the exports."""

import pytest

from trainer.engine.embeddings.exported_tables import omitted_formats
from trainer.settings import Export


@pytest.mark.parametrize(
    "formats, notice",
    [
        (["keras", "saved_model"], "the model is exported as a SavedModel alone: a Keras file would need all rows"),
        (["keras"], "the model is not exported: a Keras file would need all rows"),
        (["saved_model"], ""),
    ],
)
def test_a_keras_file_is_omitted_with_a_notice(formats: list[str], notice: str) -> None:
    assert omitted_formats(Export.model_validate({"formats": formats})).startswith(notice)
    assert bool(omitted_formats(Export.model_validate({"formats": formats}))) == bool(notice)
