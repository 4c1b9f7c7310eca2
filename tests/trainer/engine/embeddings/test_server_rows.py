"""Ids of several tables that are looked up at once: each is checked against its own table."""

from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from trainer.engine.embeddings import server_rows

TABLES: list[Any] = [
    SimpleNamespace(name="small", rows=10),
    SimpleNamespace(name="empty", rows=1),
    SimpleNamespace(name="large", rows=4000),
]
TABLE_OF_ID = [0, 0, 2, 2]


@pytest.mark.parametrize("ids", [[0, 9, 0, 3999], [9, 9, 10, 10]])
def test_valid_ids_are_returned(ids: list[int]) -> None:
    assert server_rows._check_ids_of(TABLES, tf.constant(TABLE_OF_ID), tf.constant(ids, tf.int64)).numpy().tolist() == ids


def test_a_lookup_without_ids_returns_no_ids() -> None:
    assert server_rows._check_ids_of(TABLES, tf.zeros([0], tf.int32), tf.zeros([0], tf.int64)).shape == (0,)


@pytest.mark.parametrize(
    "ids, message",
    [
        ([0, 10, 0, 0], r"the layer small has 10 rows, and was given the id\] \[10\]"),
        ([-1, 0, 0, 0], r"the layer small has 10 rows, and was given the id\] \[-1\]"),
        ([0, 0, 0, 4000], r"the layer large has 4,000 rows, and was given the id\] \[4000\]"),
        ([0, 0, -2, 4000], r"the layer large has 4,000 rows, and was given the id\] \[-2\]"),
        ([0, 0, 2**33, 0], rf"the layer large has 4,000 rows, and was given the id\] \[{2**33}\]"),
    ],
)
def test_the_first_id_out_of_range_is_reported_with_its_table(ids: list[int], message: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        server_rows._check_ids_of(TABLES, tf.constant(TABLE_OF_ID), tf.constant(ids, tf.int64))
