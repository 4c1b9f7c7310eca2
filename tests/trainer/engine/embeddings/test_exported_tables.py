"""The notice of formats that a model with spread tables is not exported in; test_embeddings.py has the exports."""

import pytest

from trainer.engine.embeddings.exported_tables import omitted_formats
from trainer.settings import Export


@pytest.mark.parametrize(
    "formats, told",
    [
        (["keras", "saved_model"], "the model is exported as a SavedModel alone: a Keras file would need all rows"),
        (["keras"], "the model is not exported: a Keras file would need all rows"),
        (["saved_model"], ""),
    ],
)
def test_a_keras_file_is_left_out_and_told(formats: list[str], told: str) -> None:
    assert omitted_formats(Export.model_validate({"formats": formats})).startswith(told)
    assert bool(omitted_formats(Export.model_validate({"formats": formats}))) == bool(told)
