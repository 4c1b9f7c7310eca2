"""The learning curve: what a run wrote becomes a picture and a table."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import tensorflow as tf

ROOT = Path(__file__).parents[2]


def draw(run: Path, picture: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.learning_curve", str(run), str(picture)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_the_picture_has_every_point_and_the_table_the_last(tmp_path: Path) -> None:
    for logs, points in (("train", [(5000, 2.0), (10_000, 12.5), (20_000, 22.5)]), ("eval", [(20_000, 21.0)])):
        with tf.summary.create_file_writer(str(tmp_path / "logs" / logs)).as_default():
            for step, reward in points:
                tf.summary.scalar("reward", reward, step=step)
                tf.summary.scalar("epsilon", 0.5, step=step)
    done = draw(tmp_path, tmp_path / "curve.svg")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "| 400 | 22.5 |  |  | 0.5 |"
    svg = (tmp_path / "curve.svg").read_text()
    ET.fromstring(svg)  # noqa: S314 - our own
    (line,) = re.findall(r'<polyline points="(.*?)"', svg)
    xs, ys = zip(*(map(float, point.split(",")) for point in line.split()), strict=True)
    assert xs == (228.0, 400.0, 744.0)
    assert list(ys) == sorted(ys, reverse=True)
    assert svg.count("<circle") == 1


def test_a_run_of_something_else_is_told(tmp_path: Path) -> None:
    done = draw(tmp_path, tmp_path / "curve.svg")
    assert done.returncode == 2
    assert "has no reward; expected the directory of a gridworld_dqn run" in done.stderr
