"""The projector's files: sprites in order, tensors that TensorBoard cannot take for text, mistakes named."""

from pathlib import Path

import numpy as np
import pytest

from trainer.workloads.projector import Embedding, Labels, sprite_sheet, write_config, write_tensor


def test_sprites_lie_row_by_row_and_the_rest_is_black() -> None:
    images = np.arange(1, 6, dtype=np.uint8)[:, np.newaxis, np.newaxis] * np.ones((1, 2, 2), np.uint8)
    sheet = sprite_sheet(images)
    assert sheet.shape == (6, 6)
    assert sheet[::2, ::2].tolist() == [[1, 2, 3], [4, 5, 0], [0, 0, 0]]


def test_too_many_sprites_are_refused() -> None:
    with pytest.raises(ValueError, match="larger than 8192 pixels"):
        sprite_sheet(np.zeros((5000, 200, 200), np.uint8))


@pytest.mark.parametrize("points", [np.zeros((3, 4)), np.full((3, 4), 0.5)])
def test_a_tensor_is_no_text_and_close_to_its_values(tmp_path: Path, points: np.ndarray) -> None:
    write_tensor(str(tmp_path), "cloud", points)
    path = tmp_path / "cloud.bytes"
    with pytest.raises(UnicodeDecodeError):
        path.read_text(encoding="utf-8")
    np.testing.assert_allclose(np.fromfile(path, "<f4").reshape(3, 4), points, rtol=3.1e-5, atol=1e-40)
    assert [entry.name for entry in tmp_path.iterdir()] == ["cloud.bytes"]


def test_there_must_be_as_many_labels_and_sprites_as_points(tmp_path: Path) -> None:
    labels = Labels(("digit",), [(1,), (2,)])
    with pytest.raises(ValueError, match="embedding cloud: 2 labels for 3 points"):
        write_config(str(tmp_path), [Embedding("cloud", 3, 4, labels)])
    with pytest.raises(ValueError, match="embedding cloud: 1 sprites for 2 points"):
        write_config(str(tmp_path), [Embedding("cloud", 2, 4, labels, np.zeros((1, 2, 2), np.uint8))])
