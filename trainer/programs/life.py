"""life: Conway's Game of Life on a torus over the tasks, until a state recurs."""

import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

from trainer.programs import rle
from trainer.programs.cluster import Cluster
from trainer.programs.rendering import animation, picture
from trainer.programs.rle import Board
from trainer.programs.sharded_board import Strips
from trainer.workloads.catalog import LifeParams
from trainer.workloads.errors import WorkloadError

_FRAME_MILLISECONDS = 200
_PICTURE_INTERVAL = 100  # generations between pictures for TensorBoard
_MAX_SIDE = 65_535  # pixels of a GIF
_MAX_PIXELS = 300_000_000  # of all frames; each takes a byte, twice while they are written


def life(cluster: Cluster, params: LifeParams, seed: int) -> dict[str, float]:
    """Return the period, the generation `since` which states recur, the last generation and its number of living cells.

    Ends with the first recurring state, or after `generations`, then without a period. Writes `life.gif` and the last
    board, `last.rle`, into the results, and pictures for TensorBoard.
    """
    cell, frame_count = animation_size(cluster.notice, params)
    strips = Strips(first_board(params, seed), cluster.tasks)
    first_seen: dict[int, int] = {}  # fingerprint -> generation
    frames: list[Board] = []
    began = time.perf_counter()
    generation, state = 0, strips.state()
    while state.fingerprint not in first_seen and generation < params.generations:
        first_seen[state.fingerprint] = generation
        if generation < frame_count:
            frames.append(strips.board())
        if generation % _PICTURE_INTERVAL == 0:
            _show(cluster, frames[-1] if generation < frame_count else strips.board(), cell, generation)
        strips.advance()
        generation, state = generation + 1, strips.state()
        cluster.progress(generation, params.generations, {"alive": state.alive})
    seconds = time.perf_counter() - began
    last = strips.board()
    _show(cluster, last, cell, generation)
    cluster.write("last.rle", rle.write(last))
    if frames:
        cluster.write("life.gif", animation((picture(board, cell) for board in frames), _FRAME_MILLISECONDS))
    metrics = {"generations": float(generation), "alive": float(state.alive), "generations_per_second": generation / seconds}
    since = first_seen.get(state.fingerprint)
    if since is None:
        cluster.notice(f"no state came again within {generation} generations; give more in train.params.generations")
        return metrics
    cluster.notice(f"the state of generation {generation} is that of generation {since}: period {generation - since}")
    return {"period": float(generation - since), "since": float(since), **metrics}


def animation_size(notice: Callable[[str], None], params: LifeParams) -> tuple[int, int]:
    """Return the pixels of a cell's side and the frames of the animation: smaller and fewer, with a notice, if it would be too large."""
    cells = params.height * params.width
    frames = min(params.frames, params.generations)
    cell = max(1, min(params.cell, _MAX_SIDE // max(params.height, params.width)))
    if frames:
        cell = max(1, min(cell, math.isqrt(_MAX_PIXELS // (frames * cells))))
        fewer = min(frames, max(1, _MAX_PIXELS // (cells * cell * cell)))
        if (cell, fewer) != (params.cell, frames):
            notice(f"the board is large: life.gif shows {fewer} generations, a cell {cell} pixels wide")
        frames = fewer
    return cell, frames


def first_board(params: LifeParams, seed: int) -> Board:
    """Return the first board: random cells, or the pattern in the middle.

    Raises:
        WorkloadError: the file cannot be read, has no pattern, or the board is too small for it.
    """
    if params.pattern == "random":
        return (np.random.default_rng(seed).random((params.height, params.width)) < params.density).astype(np.uint8)
    file = Path(params.pattern)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise WorkloadError(
            f"train.params.pattern is {params.pattern!r}: {file.absolute()} cannot be read: {reason}; expected `random`, or an RLE file in `code`"
        ) from None
    pattern = rle.read(text, params.pattern)
    (rows, columns), (height, width) = pattern.shape, (params.height, params.width)
    if rows > height or columns > width:
        raise WorkloadError(
            f"{params.pattern} is {rows} rows and {columns} columns; the board has {height} and {width}. "
            "Raise train.params.height and train.params.width."
        )
    board = np.zeros((height, width), np.uint8)
    top, left = (height - rows) // 2, (width - columns) // 2
    board[top : top + rows, left : left + columns] = pattern
    return board


def _show(cluster: Cluster, board: Board, cell: int, generation: int) -> None:
    with cluster.log.paused():
        tf.summary.image("board", picture(board, cell)[np.newaxis, :, :, np.newaxis], step=generation)
