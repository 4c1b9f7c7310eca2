"""The learning curve: what a run wrote becomes a picture and a table."""

import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import tensorflow as tf

from tests import forked


def draw(run: Path, picture: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.learning_curve", str(run), str(picture)]
    return forked.run(command, preload=forked.TENSORFLOW)


def write(directory: Path, points: list[tuple[int, float]]) -> None:
    with tf.summary.create_file_writer(str(directory)).as_default():
        for step, reward in points:
            tf.summary.scalar("reward", reward, step=step)
            tf.summary.scalar("epsilon", 0.5, step=step)


def test_the_picture_has_every_point_and_the_table_the_last(tmp_path: Path) -> None:
    for logs, points in (("train", [(5000, 2.0), (10_000, 12.5), (20_000, 22.5)]), ("eval", [(20_000, 21.0)])):
        write(tmp_path / "logs" / logs, points)
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


def test_of_what_two_attempts_did_the_later_counts_and_all_of_it_is_in_the_picture(tmp_path: Path) -> None:
    write(tmp_path / "logs" / "train", [(5000, 1.0), (10_000, 9.0), (15_000, 9.0)])  # crashed after its checkpoint of step 5000
    time.sleep(1.1)  # files are named by the second
    write(tmp_path / "logs" / "train", [(10_000, -7.0), (20_000, 3.0)])
    write(tmp_path / "logs" / "eval", [(25_000, 4.0)])
    done = draw(tmp_path, tmp_path / "curve.svg")
    assert [line.split(" | ")[:2] for line in done.stdout.splitlines()[2:]] == [["| 100", "1"], ["| 200", "-7"], ["| 400", "3"]], (
        done.stderr
    )
    svg = (tmp_path / "curve.svg").read_text()
    (line,) = re.findall(r'<polyline points="(.*?)"', svg)
    (circle,) = re.findall(r'<circle cx="(.*?)" cy="(.*?)"', svg)
    points = [tuple(map(float, point.split(","))) for point in line.split()] + [tuple(map(float, circle))]
    assert len(points) == 4
    assert all(56 <= x <= 744 and 36 <= y <= 352 for x, y in points), points  # the axes


def test_a_run_of_something_else_is_told(tmp_path: Path) -> None:
    done = draw(tmp_path, tmp_path / "curve.svg")
    assert done.returncode == 2
    assert "has no reward; expected the directory of a gridworld_dqn run" in done.stderr
