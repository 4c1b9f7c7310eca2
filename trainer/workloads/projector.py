"""The files behind TensorBoard's embedding projector: its configuration, tensors, labels and sprites.

Tensors are files of float32, which TensorBoard reads without TensorFlow and in any version that knows `tensor_path`.
All files are in the log directory, because TensorBoard reads no others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorboard.plugins import projector

# The largest image that browsers take as a texture.
MAX_SPRITE_SIDE = 8192


@dataclass(frozen=True)
class Labels:
    """The labels of each point: rows of one value a column; a single column is shown without its heading."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[object, ...]]


@dataclass(frozen=True)
class Embedding:
    """One cloud of points: the numbers of `points` and `dimensions`, the labels, and optional images [points, h, w] uint8."""

    name: str
    points: int
    dimensions: int
    labels: Labels
    sprites: np.ndarray | None = None


def write_config(logdir: str, embeddings: Sequence[Embedding]) -> None:
    """Write the projector's configuration, labels and sprites; `write_tensor` writes the points.

    Raises ValueError if an embedding has not one label, or one sprite, for each point.
    """
    root = Path(logdir)
    root.mkdir(parents=True, exist_ok=True)
    config = projector.ProjectorConfig()
    for embedding in embeddings:
        _check(embedding)
        entry = config.embeddings.add()
        entry.tensor_name = embedding.name
        entry.tensor_path = _tensor_file(embedding.name)
        entry.tensor_shape.extend([embedding.points, embedding.dimensions])
        entry.metadata_path = f"{embedding.name}-labels.tsv"
        (root / entry.metadata_path).write_text(_table(embedding.labels), encoding="utf-8")
        if embedding.sprites is not None:
            entry.sprite.image_path = f"{embedding.name}-sprites.png"
            entry.sprite.single_image_dim.extend([embedding.sprites.shape[2], embedding.sprites.shape[1]])
            tf.io.write_file(str(root / entry.sprite.image_path), tf.io.encode_png(sprite_sheet(embedding.sprites)[:, :, np.newaxis]))
    projector.visualize_embeddings(str(root), config)


def write_tensor(logdir: str, name: str, points: np.ndarray) -> None:
    """Replace the points of the projector's embedding `name` by `points` [points, dimensions]."""
    content = bytearray(np.ascontiguousarray(points, "<f4").tobytes())
    # TensorBoard reads a tensor file as text unless decoding fails. 0xff begins no UTF-8 character, so decoding fails at once;
    # it changes the first number by a factor of at most 3e-5.
    content[0] = 0xFF
    path = Path(logdir) / _tensor_file(name)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(content)
    unfinished.replace(path)


def sprite_sheet(images: np.ndarray) -> np.ndarray:
    """Lay images [n, h, w] out row by row in a square grid, black where the grid has more cells than images.

    Raises ValueError if the sheet would be larger than browsers show.
    """
    count, height, width = images.shape
    side = int(np.ceil(np.sqrt(count)))
    if side * max(height, width) > MAX_SPRITE_SIDE:
        raise ValueError(f"{count} sprites of {height}x{width} make a sheet larger than {MAX_SPRITE_SIDE} pixels. Take fewer of them.")
    cells = np.zeros((side * side, height, width), images.dtype)
    cells[:count] = images
    return cells.reshape(side, side, height, width).swapaxes(1, 2).reshape(side * height, side * width)


def _tensor_file(name: str) -> str:
    return f"{name}.bytes"


def _table(labels: Labels) -> str:
    # TensorBoard expects a heading where there is more than one column, and none where there is one.
    heading = [labels.columns] if len(labels.columns) > 1 else []
    return "".join("\t".join(map(str, row)) + "\n" for row in (*heading, *labels.rows))


def _check(embedding: Embedding) -> None:
    parts = {"labels": len(embedding.labels.rows)}
    if embedding.sprites is not None:
        parts["sprites"] = len(embedding.sprites)
    for part, count in parts.items():
        if count != embedding.points:
            raise ValueError(f"embedding {embedding.name}: {count} {part} for {embedding.points} points; expected one each.")
