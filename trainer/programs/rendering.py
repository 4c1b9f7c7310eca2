"""Boards as pictures: one for TensorBoard, many as an animated GIF."""

import io
from collections.abc import Iterable

import numpy as np
from PIL import Image

from trainer.programs.rle import Board

_DEAD, _ALIVE = 255, 0  # white and black


def picture(board: Board, cell: int) -> Board:
    """Return a picture [rows x cell, columns x cell] in shades of grey, living cells black."""
    return np.where(np.kron(board, np.ones((cell, cell), np.uint8)) > 0, _ALIVE, _DEAD).astype(np.uint8)


def animation(pictures: Iterable[Board], milliseconds: int) -> bytes:
    """Return an animated GIF that repeats forever, with each picture, [rows, columns] or [rows, columns, 3], shown for so many milliseconds."""
    first, *others = [Image.fromarray(one) for one in pictures]
    written = io.BytesIO()
    first.save(written, format="GIF", save_all=True, append_images=others, duration=milliseconds, loop=0)
    return written.getvalue()
