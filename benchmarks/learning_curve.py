"""Draws the learning curve of a gridworld_dqn run from its TensorBoard logs, as an SVG, and prints its numbers as a Markdown table.

python -m benchmarks.learning_curve runs/gridworld-dqn docs/gridworld-dqn.svg
"""

import argparse
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import tensorflow as tf
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

EPISODE = 50  # steps
PUBLISHED, RANDOM = 22.0, 2.0  # reward of an episode
_WIDTH, _HEIGHT = 760, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 36, 48
_TRAINING, _EVALUATION = "#1f77b4", "#d62728"
_ROWS = 12  # of the table, at most

Points = list[tuple[float, float]]


def scalars(directory: Path, tag: str) -> Points:
    """Return (episodes, value) of each scalar under `tag` in a directory of event files; their names begin with the time, a file an attempt.

    Steps after the checkpoint from which the next attempt goes on are written a second time: the later ones count.
    """
    found: dict[int, float] = {}
    for file in sorted(directory.glob("events.out.tfevents.*")):
        own = {
            event.step: float(tf.make_ndarray(value.tensor))
            for event in EventFileLoader(str(file)).Load()
            for value in event.summary.value
            if value.tag == tag
        }
        found = {step: value for step, value in found.items() if step < min(own, default=math.inf)} | own
    return [(step / EPISODE, value) for step, value in sorted(found.items())]


def svg(training: Points, evaluation: Points) -> str:
    """Return the picture: reward an episode over episodes."""
    rewards = [y for _, y in (*training, *evaluation)]
    last, low, top = max(x for x, _ in (*training, *evaluation)), 5 * (min(0, *rewards) // 5), 5 * (1 + max(PUBLISHED, *rewards) // 5)

    def place(x: float, y: float) -> tuple[float, float]:
        wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
        return round(_LEFT + x / last * wide, 1), round(_HEIGHT - _BOTTOM - (y - low) / (top - low) * high, 1)

    def text(x: float, y: float, words: str, anchor: str = "middle", colour: str = "#333") -> str:
        return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}">{words}</text>'

    def level(y: float, style: str) -> str:
        (x1, y1), (x2, y2) = place(0, y), place(last, y)
        return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" {style}/>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        text(_WIDTH / 2, 20, "gridworld_dqn: reward of an episode"),
        text(_WIDTH / 2, _HEIGHT - 10, "episodes"),
    ]
    for mark in range(int(low), int(top) + 1, 5):
        parts += [level(mark, 'stroke="#ddd"'), text(_LEFT - 8, place(0, mark)[1] + 4, str(mark), "end")]
    grid = 1000 if last > 2000 else 100
    parts += [text(place(x, 0)[0], _HEIGHT - _BOTTOM + 18, str(x)) for x in range(0, int(last) + 1, grid)]
    for known, words in ((PUBLISHED, "published, 22"), (RANDOM, "random play, 2")):
        parts += [level(known, 'stroke="#555" stroke-dasharray="6 4"'), text(_WIDTH - _RIGHT - 4, place(0, known)[1] + 16, words, "end")]
    line = " ".join(f"{x},{y}" for x, y in (place(*point) for point in training))
    parts.append(f'<polyline points="{line}" fill="none" stroke="{_TRAINING}" stroke-width="1.8"/>')
    for point in evaluation:
        x, y = place(*point)
        parts.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{_EVALUATION}"/>')
    middle = (_TOP + _HEIGHT) / 2
    parts.append(text(_WIDTH - _RIGHT - 4, middle, "mean of the last 100 episodes, training", "end", _TRAINING))
    if evaluation:
        parts.append(text(_WIDTH - _RIGHT - 4, middle + 20, "64 episodes, evaluation", "end", _EVALUATION))
    return "\n".join([*parts, "</svg>"]) + "\n"


def table(columns: Sequence[str], series: Iterable[Points]) -> str:
    """Return some of the points as a Markdown table, the last ones among them: episodes, then each series' value."""
    values = [dict(points) for points in series]
    episodes = sorted(values[0])
    every = -(-len(episodes) // _ROWS)
    shown = sorted({*episodes[every - 1 :: every], episodes[-1]})
    lines = [f"| {' | '.join(columns)} |", "|" + " ---: |" * len(columns)]
    lines += [f"| {x:,.0f} | {' | '.join(f'{one[x]:.3g}' if x in one else '' for one in values)} |" for x in shown]
    return "\n".join(lines)


def main() -> None:
    """Draw and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the run directory")
    parser.add_argument("picture", type=Path, help="the SVG to write")
    options = parser.parse_args()
    train = options.run / "logs/train"
    series = [scalars(train, tag) for tag in ("reward", "q", "loss", "epsilon")]
    if not series[0]:
        parser.error(f"{train} has no reward; expected the directory of a gridworld_dqn run that wrote summaries")
    options.picture.write_text(svg(series[0], scalars(options.run / "logs/eval", "reward")), encoding="utf-8")
    print(table(("episodes", "reward", "q", "loss", "epsilon"), series))


if __name__ == "__main__":
    main()
