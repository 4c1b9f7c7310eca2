"""docs/embeddings.md: its tables of shared rows and of slots agree with hashing and with the optimizers."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from trainer.engine.embeddings.row_updates import rule_of

PAGE = (Path(__file__).parents[4] / "docs" / "embeddings.md").read_text(encoding="utf-8")
OPTIMIZERS: dict[str, list[Callable[[], Any]]] = {
    "SGD; with momentum": [keras.optimizers.SGD, partial(keras.optimizers.SGD, momentum=0.9)],
    "Adagrad": [keras.optimizers.Adagrad],
    "RMSprop; each of momentum and centered": [keras.optimizers.RMSprop, partial(keras.optimizers.RMSprop, momentum=0.9)],
    "Ftrl, Adam, AdamW; amsgrad": [keras.optimizers.Adam, partial(keras.optimizers.Adam, amsgrad=True)],
}


def test_the_shares_of_ids_that_share_a_row_agree_with_keras_hashing() -> None:
    shares = {float(rows): float(share) / 100 for rows, share in re.findall(r"^\| ([\d.]+) \| ([\d.]+) % \|$", PAGE, re.MULTILINE)}
    assert len(shares) == 7
    assert {rows: 1 - np.exp(-1 / rows) for rows in shares} == pytest.approx(shares, abs=0.0005)
    ids = np.random.default_rng(1).integers(0, 2**60, 50_000)
    _, inverse, counts = np.unique(keras.layers.Hashing(100_000)(ids), return_inverse=True, return_counts=True)
    assert np.mean(counts[inverse] > 1) == pytest.approx(shares[2], abs=0.01)


def test_the_numbers_of_slots_agree_with_the_update_rules() -> None:
    section = PAGE.split("## Sizing of ps")[1]
    documented = dict(re.findall(r"^\| (.*?) \| (\d[^|]*) \|$", section, re.MULTILINE))
    assert documented.keys() == OPTIMIZERS.keys()
    for names, optimizers in OPTIMIZERS.items():
        least, *more = (len(rule_of(optimizer, []).slots(optimizer)) for optimizer in (create() for create in optimizers))
        assert next(int(number) for number in re.findall(r"\d", documented[names])) == least
        assert more == ([] if ";" not in names else [least + 1])
