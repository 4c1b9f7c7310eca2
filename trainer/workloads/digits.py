"""Synthetic digits: 28x28 images that look handwritten, drawn from a seed in a fraction of a second.

Each digit is a few strokes. Handwritings (`HANDS`) are drawn first: each bends the strokes by a smooth random warp and has
its own pen; its ten digits are rendered once, by their distance to the strokes, into an atlas. Each image then
uses one digit of one hand, rotated, slanted, scaled and shifted at random, with noise on top.
"""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

SIDE = 28
HANDS = 60
ATLAS_SIDE = 48
CHUNK = 500

# Distance from a stroke, where the digit's box is 1 high, within which the pen paints; a soft edge follows.
PEN = (0.045, 0.09)
EDGE = 0.07
WARP = 0.035

# How an image is turned (radians), slanted, scaled and shifted (parts of its side), and how much noise it has (of 255).
TURN = 0.2
SLANT = 0.25
SCALE = (0.55, 0.76)
STRETCH = 0.15
SHIFT = 0.07
NOISE = 40

Points = list[tuple[float, float]]


def draw(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `count` images, uint8 [count, 28, 28] with 0 as background, and their digits, uint8 [count].

    The same count and seed give the same digits; digits of different seeds are by different hands.
    """
    rng = np.random.default_rng([0x0D161751, seed])
    atlas = _atlas(rng)
    labels = rng.integers(0, 10, count, dtype=np.uint8)
    styles = np.array([len(STROKES[digit]) for digit in range(10)])
    first_style = np.concatenate([[0], np.cumsum(styles)[:-1]])
    style = first_style[labels] + rng.integers(0, styles[labels])
    glyph = rng.integers(0, HANDS, count) * styles.sum() + style
    images = np.empty((count, SIDE * SIDE), np.uint8)
    for begin in range(0, count, CHUNK):
        part = slice(begin, min(begin + CHUNK, count))
        images[part] = _render(rng, atlas, glyph[part])
    return images.reshape(count, SIDE, SIDE), labels


def _render(rng: np.random.Generator, atlas: np.ndarray, glyph: np.ndarray) -> np.ndarray:
    """Render glyphs of the atlas as images [n, 784]: each pixel looks up where the transformation took it from."""
    count = len(glyph)
    turn = rng.uniform(-TURN, TURN, count)
    slant = rng.uniform(-SLANT, SLANT, count)
    height = rng.uniform(*SCALE, count)
    width = height * rng.uniform(1 - STRETCH, 1 + STRETCH, count)
    shift = rng.uniform(-SHIFT, SHIFT, (2, count))
    cos, sin = np.cos(turn), np.sin(turn)
    # From the image's centred coordinates back to the glyph's: unturn, unslant, unscale.
    by_row = np.stack([cos / height, (-sin - slant * cos) / width]).astype(np.float32)
    by_column = np.stack([sin / height, (cos - slant * sin) / width]).astype(np.float32)

    grid = ((np.arange(SIDE, dtype=np.float32) + 0.5) / SIDE - 0.5)[np.newaxis]
    down = grid - shift[0].astype(np.float32)[:, np.newaxis]
    right = grid - shift[1].astype(np.float32)[:, np.newaxis]
    index = (glyph * ATLAS_SIDE**2).astype(np.int32)[:, np.newaxis, np.newaxis]
    coordinate = np.empty((count, SIDE, SIDE), np.float32)
    for axis, stride in (0, ATLAS_SIDE), (1, 1):
        from_down, from_right = by_row[axis][:, np.newaxis] * down, by_column[axis][:, np.newaxis] * right
        np.add(from_down[:, :, np.newaxis], from_right[:, np.newaxis, :], out=coordinate)
        coordinate += np.float32(0.5)
        coordinate *= ATLAS_SIDE
        # The atlas has an empty border, so what falls outside is background.
        index = index + np.clip(coordinate, 0, ATLAS_SIDE - 1, out=coordinate).astype(np.int32) * stride
    ink = atlas[index].reshape(count, -1)
    noise = rng.integers(0, NOISE + 1, ink.shape, dtype=np.uint8)
    # Noise darkens ink and speckles the background; neither leaves 0 to 255.
    return np.asarray(np.where(ink > noise, ink - noise, (noise - ink) // 2))


def _atlas(rng: np.random.Generator) -> np.ndarray:
    """Draw every digit in every style by every hand; uint8, flat, [hands, styles, side, side]."""
    glyphs = [_segments(strokes) for digit in range(10) for strokes in STROKES[digit]]
    pen = rng.uniform(*PEN, (HANDS, 1, 1)).astype(np.float32)
    atlas = np.empty((HANDS, len(glyphs), ATLAS_SIDE, ATLAS_SIDE), np.uint8)
    for number, segments in enumerate(glyphs):
        ends = _warped(rng, segments)
        atlas[:, number] = np.clip((pen + EDGE - _distance(ends)) / EDGE, 0, 1) * 255
    atlas[:, :, (0, -1), :] = 0
    atlas[:, :, :, (0, -1)] = 0
    return atlas.reshape(-1)


def _warped(rng: np.random.Generator, segments: np.ndarray) -> np.ndarray:
    """Bend segments [s, 2, 2] as each hand does: a sum of slow sines moves each point; returns [hands, s, 2, 2]."""
    waves = 3
    frequency = rng.uniform(-5, 5, (HANDS, waves, 2, 2))
    phase = rng.uniform(0, 2 * np.pi, (HANDS, waves, 2))
    angle = np.einsum("sep,hwpd->hswed", segments, frequency) + phase[:, np.newaxis, :, np.newaxis, :]
    return np.asarray((segments + WARP * np.sin(angle).sum(axis=2)).astype(np.float32))


def _distance(ends: np.ndarray) -> np.ndarray:
    """Return the distance [hands, rows, columns] of each atlas pixel to the nearest of its hand's segments [hands, s, 2, 2]."""
    # The digit's box is the middle of the atlas, so that pen and warp stay inside.
    axis = ((np.arange(ATLAS_SIDE, dtype=np.float32) + 0.5) / ATLAS_SIDE - 0.5) * 1.4 + 0.5
    nearest = np.full((len(ends), ATLAS_SIDE, ATLAS_SIDE), np.inf, np.float32)
    # Allocated once: allocation costs as much as the sums.
    along, off, squared = (np.empty_like(nearest) for _ in range(3))
    for (x0, y0), (x1, y1) in ends.transpose(1, 2, 3, 0)[..., np.newaxis, np.newaxis]:
        dx, dy = x1 - x0, y1 - y0
        x, y = axis - x0, axis[:, np.newaxis] - y0
        np.add(x * dx, y * dy, out=along)
        along /= dx * dx + dy * dy + np.float32(1e-9)
        np.clip(along, 0, 1, out=along)
        np.subtract(x, np.multiply(along, dx, out=off), out=off)
        np.multiply(off, off, out=squared)
        np.subtract(y, np.multiply(along, dy, out=off), out=off)
        squared += np.multiply(off, off, out=off)
        np.minimum(nearest, squared, out=nearest)
    return np.asarray(np.sqrt(nearest))


def _segments(strokes: Iterable[Points]) -> np.ndarray:
    return np.array([pair for stroke in strokes for pair in pairwise(stroke)])


def _arc(centre: tuple[float, float], radius: tuple[float, float], degrees: tuple[float, float], pieces: int = 8) -> Points:
    """Return points on an ellipse; 0 degrees points right, 90 down."""
    angles = np.radians(np.linspace(*degrees, pieces + 1))
    return [(centre[0] + radius[0] * float(np.cos(angle)), centre[1] + radius[1] * float(np.sin(angle))) for angle in angles]


# Every digit's styles, each a list of strokes: points (x, y) in a box from (0, 0), top left, to (1, 1).
STROKES: dict[int, list[list[Points]]] = {
    0: [[_arc((0.5, 0.5), (0.32, 0.5), (0, 360), 14)], [_arc((0.5, 0.5), (0.24, 0.5), (0, 360), 14)]],
    1: [[[(0.5, 0.0), (0.5, 1.0)]], [[(0.3, 0.22), (0.52, 0.0), (0.52, 1.0)]]],
    2: [
        [[*_arc((0.5, 0.28), (0.3, 0.28), (190, 390)), (0.18, 1.0), (0.84, 1.0)]],
        [[*_arc((0.5, 0.28), (0.3, 0.28), (200, 400)), *_arc((0.32, 0.88), (0.13, 0.1), (300, 60), 6), (0.86, 0.98)]],
    ],
    3: [
        [_arc((0.46, 0.25), (0.28, 0.25), (200, 450)), _arc((0.46, 0.74), (0.32, 0.26), (270, 510))],
        [[(0.2, 0.0), (0.78, 0.0), (0.44, 0.4)], _arc((0.44, 0.7), (0.34, 0.3), (270, 500))],
    ],
    4: [
        [[(0.62, 1.0), (0.62, 0.0), (0.14, 0.66), (0.88, 0.66)]],
        [[(0.22, 0.0), (0.18, 0.52), (0.8, 0.52)], [(0.74, 0.0), (0.68, 1.0)]],
    ],
    5: [
        [[(0.8, 0.0), (0.26, 0.0), (0.22, 0.44)], _arc((0.44, 0.68), (0.34, 0.32), (225, 500), 10)],
        [[(0.78, 0.02), (0.3, 0.0), (0.24, 0.42), (0.5, 0.4)], _arc((0.48, 0.7), (0.3, 0.3), (270, 490))],
    ],
    6: [
        [[(0.66, 0.0), (0.36, 0.32), (0.22, 0.66)], _arc((0.5, 0.72), (0.29, 0.28), (0, 360), 12)],
        [[*_arc((0.76, 0.62), (0.54, 0.62), (270, 180), 6), *_arc((0.5, 0.74), (0.27, 0.26), (170, -160), 10)]],
    ],
    7: [
        [[(0.16, 0.0), (0.84, 0.0), (0.4, 1.0)]],
        [[(0.16, 0.04), (0.82, 0.0), (0.44, 1.0)], [(0.34, 0.5), (0.78, 0.5)]],
    ],
    8: [[_arc((0.5, 0.25), (0.25, 0.25), (0, 360), 12), _arc((0.5, 0.75), (0.31, 0.25), (0, 360), 12)]],
    9: [
        [_arc((0.5, 0.28), (0.28, 0.28), (0, 360), 12), [(0.78, 0.28), (0.76, 0.6), (0.62, 1.0)]],
        [_arc((0.48, 0.28), (0.28, 0.28), (0, 360), 12), [(0.76, 0.28), (0.74, 1.0)]],
    ],
}
