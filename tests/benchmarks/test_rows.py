"""The task of the group `embedding`: what its batches and tables are."""

import numpy as np
import pytest

from benchmarks import ours, rows


def test_several_tables_have_all_rows_between_them_and_differ_in_size() -> None:
    sizes = rows.sizes(1_000_000, 26)
    assert sum(sizes) == 1_000_000
    assert len(sizes) == len(set(sizes)) == 26
    assert rows.sizes(10, 1) == [10]


@pytest.mark.parametrize("tables", [1, 26])
def test_readers_have_their_own_batches_which_go_on_where_they_ended(tables: int) -> None:
    first, second = list(rows.batches(10_000, 26, 3, tables=tables).take(2).as_numpy_iterator())
    (again,) = rows.batches(10_000, 26, 3, start=1, tables=tables).take(1).as_numpy_iterator()
    (other,) = rows.batches(10_000, 26, 4, tables=tables).take(1).as_numpy_iterator()
    assert np.array_equal(again[0], second[0])
    assert not np.array_equal(first[0], other[0])
    ids, targets = first
    assert ids.shape == (rows.BATCH, 26)
    assert ids.min() >= 0
    assert (ids < rows.sizes(10_000, tables)).all()
    assert targets.shape == (rows.BATCH, 1)


def test_ours_spreads_tables_over_two_ps() -> None:
    spec = ours.spec(ours.CASES["rows_10000"], 10, 2, "float32")
    assert spec["roles"] == {"chief": {"cpu": 1}, "ps": {"cpu": 1, "replicas": 2}, "worker": {"cpu": 1, "replicas": 2}}
    assert spec["train"] | {"workload": "benchmarks.rows:Rows", "embeddings": {"min_rows": 1}} == spec["train"]  # type: ignore[operator]
