"""Synthetic images: 32x32 colour images of ten kinds of pattern, drawn from a seed in about a second.

The kinds differ in texture: horizontal, vertical or diagonal stripes, fine or coarse, a chequerboard, rings, spots and
rays. Colours, contrast, position, angle and scale are random for each image, so a single pixel has no information about the
kind, and a linear classifier fails; cropping, mirroring, brightness and contrast do not change the kind.
"""

from collections.abc import Callable

import numpy as np

SIDE = 32
CHUNK = 500

# Random rotation (radians) and scale of an image's pattern, and the hardness of its edges.
TURN = 0.2
SCALE = (0.85, 1.18)
HARDNESS = (1.0, 4.0)

# Of 255: the difference between a pattern's two colours in each channel; the standard deviation of the grain; a linear gradient of light.
CONTRAST = (25, 110)
GRAIN = (4, 22)
LIGHT = 40

Wave = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _stripes(_across: np.ndarray, down: np.ndarray) -> np.ndarray:
    return np.asarray(np.sin(down))


def _chequerboard(across: np.ndarray, down: np.ndarray) -> np.ndarray:
    return np.asarray(np.sin(across) * np.sin(down) * 1.6)


def _spots(across: np.ndarray, down: np.ndarray) -> np.ndarray:
    return np.asarray(np.cos(across) + np.cos(down) - np.float32(1.0))


def _rings(across: np.ndarray, down: np.ndarray) -> np.ndarray:
    return np.asarray(np.sin(np.sqrt(across**2 + down**2)))


def _rays(across: np.ndarray, down: np.ndarray) -> np.ndarray:
    return np.asarray(np.sin(np.arctan2(down, across) * 8))


# Each kind's pattern, the angle it lies at (radians), and its wavelength in pixels.
KINDS: tuple[tuple[Wave, float, float], ...] = (
    (_stripes, 0.0, 4.2),  # horizontal
    (_stripes, 0.0, 9.0),
    (_stripes, np.pi / 2, 4.2),  # vertical
    (_stripes, np.pi / 2, 9.0),
    (_stripes, np.pi / 4, 4.2),  # diagonal
    (_stripes, np.pi / 4, 9.0),
    (_chequerboard, 0.0, 9.0),
    (_spots, 0.0, 8.0),
    (_rings, 0.0, 6.5),
    (_rays, 0.0, 8.0),
)
WAVES, ANGLES, WAVELENGTHS = zip(*KINDS, strict=True)
# Patterns with a centre show it in the image; others show any part.
CENTRED = np.array([wave in (_rings, _rays) for wave in WAVES])


def draw(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `count` images, uint8 [count, 32, 32, 3], and their kinds, uint8 [count]; the same for the same count and seed."""
    rng = np.random.default_rng([0x9A77E421, seed])
    kinds = rng.integers(0, len(KINDS), count, dtype=np.uint8)
    images = np.empty((count, SIDE, SIDE, 3), np.uint8)
    for begin in range(0, count, CHUNK):
        part = slice(begin, min(begin + CHUNK, count))
        images[part] = _coloured(rng, _patterns(rng, kinds[part]))
    return images, kinds


def _patterns(rng: np.random.Generator, kinds: np.ndarray) -> np.ndarray:
    """Return one pattern an image, float32 [n, 32, 32] from -1 to 1."""
    count = len(kinds)
    angle = np.array(ANGLES)[kinds] + rng.uniform(-TURN, TURN, count)
    # As many lean to one side as to the other.
    angle = np.where(rng.random(count) < 0.5, angle, -angle)
    frequency = 2 * np.pi / (np.array(WAVELENGTHS)[kinds] * rng.uniform(*SCALE, count))
    shift = np.where(CENTRED[kinds], rng.uniform(-6, 6, (2, count)), rng.uniform(-SIDE, SIDE, (2, count)))
    hardness = rng.uniform(*HARDNESS, count)

    axis = np.arange(SIDE, dtype=np.float32) - (SIDE - 1) / 2
    y = axis[np.newaxis, :, np.newaxis] - _per_image(shift[0])
    x = axis[np.newaxis, np.newaxis, :] - _per_image(shift[1])
    cos, sin = _per_image(np.cos(angle) * frequency), _per_image(np.sin(angle) * frequency)
    across, down = cos * x + sin * y, cos * y - sin * x
    values = np.empty((count, SIDE, SIDE), np.float32)
    for kind, wave in enumerate(WAVES):
        is_kind = kinds == kind
        values[is_kind] = wave(across[is_kind], down[is_kind])
    return np.asarray(np.tanh(values * _per_image(hardness)))


def _coloured(rng: np.random.Generator, patterns: np.ndarray) -> np.ndarray:
    """Return patterns as images uint8 [n, 32, 32, 3]: two colours each, unevenly lit, with grain."""
    count = len(patterns)
    middle = rng.uniform(60, 195, (count, 1, 1, 3))
    step = rng.uniform(*CONTRAST, (count, 1, 1, 3)) / 2 * rng.choice([-1, 1], (count, 1, 1, 3))
    slope = rng.uniform(-LIGHT, LIGHT, (2, count))
    axis = np.linspace(-1, 1, SIDE, dtype=np.float32)
    light = _per_image(slope[0]) * axis[np.newaxis, :, np.newaxis] + _per_image(slope[1]) * axis[np.newaxis, np.newaxis, :]
    grain = rng.standard_normal((count, SIDE, SIDE, 3), np.float32) * rng.uniform(*GRAIN, (count, 1, 1, 1)).astype(np.float32)
    images = middle.astype(np.float32) + step.astype(np.float32) * patterns[..., np.newaxis] + light[..., np.newaxis] + grain
    return np.asarray(np.clip(images, 0, 255).astype(np.uint8))


def _per_image(values: np.ndarray) -> np.ndarray:
    """Return one value an image, to be combined with images [n, rows, columns]."""
    return values.astype(np.float32)[:, np.newaxis, np.newaxis]
