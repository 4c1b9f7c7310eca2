"""Large embedding layers in one process: updates of single rows learn what Keras's update of the whole matrix learns."""

import math
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.engine import embedding_models
from tests.trainer.engine.drive_embeddings import DENSE, config_of, trained
from tests.trainer.engine.test_loop import Output
from trainer.engine.checkpoints import CheckpointError, Checkpoints
from trainer.engine.collectives.all_reduce import AllReduce
from trainer.engine.embeddings.local_tables import LocalTables
from trainer.engine.embeddings.row_updates import deduplicated
from trainer.engine.export import write_last
from trainer.engine.replicated import ReplicatedSession
from trainer.events import Reporter
from trainer.settings import Embeddings, Export
from trainer.workloads.errors import WorkloadError
from trainer.workloads.loading import load_workload

CASES: dict[str, dict[str, Any]] = {
    "frozen": {"optimizer": "Adagrad"},
    "accumulated": {"model": "functional", "gradients": {"accumulate": 2}},
    "global clipnorm": {"model": "functional", "optimizer": "Adagrad", "arguments": {"global_clipnorm": 0.05}},
    "adamw": {"model": "few", "optimizer": "AdamW", "arguments": {"weight_decay": 0.1}},
    "alone": {},
}


def session(scratch: Path, params: dict[str, Any], **settings: Any) -> ReplicatedSession:
    config = config_of(scratch, params, **settings)
    return ReplicatedSession(load_workload(config.train), config, AllReduce())


@pytest.mark.parametrize("case", CASES)
def test_rows_learn_what_the_whole_matrix_learns(tmp_path: Path, case: str) -> None:
    params = {"model": case, **CASES[case]}
    settings = {"gradients": params.pop("gradients", {})}
    by_rows, dense = session(tmp_path, params, **settings), session(tmp_path, params, embeddings=DENSE, **settings)
    assert by_rows.tables
    assert not dense.tables
    apply = dense.optimizer.apply
    # If a batch has a row twice, Keras gets two gradients for it, and its optimizers square and clip each of them separately.
    object.__setattr__(
        dense.optimizer, "apply", lambda gradients, variables: apply([tf.convert_to_tensor(g) for g in gradients], variables)
    )
    weights = [result.model.get_weights() for result in (trained(by_rows), trained(dense))]
    assert max(float(np.max(np.abs(a - b))) for a, b in zip(*weights, strict=True)) < 1e-5
    moved = [np.max(np.abs(embedding_models.start(*w.shape).value - w)) for w in weights[0] if w.shape in {(23, 4), (23, 1), (6, 4)}]
    assert max(moved) > 1e-4, moved


def test_a_model_with_local_tables_is_exported_whole_in_both_formats(tmp_path: Path) -> None:
    result = trained(session(tmp_path, {"model": "functional", "optimizer": "Adagrad"}))
    write_last(Export(), tmp_path, 20, {}, result.model, Reporter("chief", Output()), lambda: math.inf, finished=True)
    inputs = {"user": tf.constant([0, 5, 22], tf.int64), "items": tf.constant([[1, 1, 2], [0, 22, 7], [3, 4, 5]], tf.int64)}
    expected = result.model(inputs)
    loaded = keras.models.load_model(tmp_path / "export" / "last" / "model.keras")
    np.testing.assert_allclose(loaded(inputs), expected, atol=1e-6)
    served = tf.saved_model.load(str(tmp_path / "export" / "last" / "saved_model"))
    np.testing.assert_allclose(served.serve(inputs), expected, atol=1e-6)


def test_an_optimizer_that_needs_the_whole_matrix_gets_it(tmp_path: Path) -> None:
    assert session(tmp_path, {"model": "few", "optimizer": "Lion"}).tables is None
    with pytest.raises(WorkloadError, match=r"train\.embeddings names rows, and the model has no such Embedding layer; it has few"):
        session(tmp_path, {"model": "few"}, embeddings={"sharded": ["rows"]})


def test_a_layer_that_is_not_used_or_looks_up_its_rows_itself_is_left_to_keras(tmp_path: Path) -> None:
    result = trained(session(tmp_path, {"model": "spare", "optimizer": "Adagrad"}))
    assert result.tables.described() == "embedding layers updated by the rows that a step uses: used (23 x 4, 368 bytes)"


def test_layers_may_be_frozen_before_the_first_step(tmp_path: Path) -> None:
    untrained = session(tmp_path, {"model": "functional", "optimizer": "Adagrad"})
    head, shared, other = untrained.model.layers[-1], untrained.model.get_layer("shared"), untrained.model.get_layer("other")
    shared.trainable = head.trainable = False
    before = [layer.get_weights() for layer in (head, shared, other)]
    trained(untrained)
    after = [layer.get_weights() for layer in (head, shared, other)]
    unchanged = [all(np.array_equal(a, b) for a, b in zip(*pair, strict=True)) for pair in zip(before, after, strict=True)]
    assert unchanged == [True, True, False]


def test_rows_that_no_batch_has_do_not_change_and_excluded_layers_do_not_decay(tmp_path: Path) -> None:
    by_rows = session(tmp_path, {"model": "drawn", "initializer": "uniform", "optimizer": "Adam"})
    layer = by_rows.model.get_layer("drawn")
    (before,) = layer.get_weights()
    trained(by_rows)
    (after,) = layer.get_weights()
    np.testing.assert_array_equal(after[embedding_models.ROWS :], before[embedding_models.ROWS :])
    assert np.all(np.any(after[: embedding_models.ROWS] != before[: embedding_models.ROWS], axis=1))
    assert by_rows.tables is not None
    assert [bool(np.any(slot.numpy()[embedding_models.ROWS :])) for slot in by_rows.tables.variables] == [False, False]

    optimizer = keras.optimizers.AdamW(weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_list=[layer.embeddings])
    tables = LocalTables.of(by_rows.model, optimizer, Embeddings(min_rows=1))
    assert tables is not None
    assert [rows.decays for rows in tables._rows.values()] == [False]


def test_a_checkpoint_has_rows_and_slots(tmp_path: Path) -> None:
    params = {"model": "few", "optimizer": "Adam"}
    first, second = session(tmp_path, params), session(tmp_path, params)
    assert first.tables is not None
    assert second.tables is not None
    trained(first)
    Checkpoints(tmp_path / "checkpoints", first.model, first.optimizer, 1, first.tables.files()).save(20)
    restored = Checkpoints(tmp_path / "checkpoints", second.model, second.optimizer, 1, second.tables.files()).restore(print)
    assert restored
    assert restored.step == 20
    for saved, read in zip(first.tables.variables, second.tables.variables, strict=True):
        assert np.any(saved.numpy())
        np.testing.assert_array_equal(saved.numpy(), read.numpy())


def test_a_checkpoint_of_rows_and_one_of_the_whole_matrix_are_refused_for_each_other_with_a_remedy(tmp_path: Path) -> None:
    params = {"model": "few", "optimizer": "Adagrad"}
    dense, by_rows = session(tmp_path, params, embeddings=DENSE), session(tmp_path, params)
    assert by_rows.tables is not None
    rows = by_rows.tables.files()
    Checkpoints(tmp_path / "whole", dense.model, dense.optimizer, 1).save(20)
    with pytest.raises(CheckpointError, match=r"name them in train\.embeddings\.whole"):
        Checkpoints(tmp_path / "whole", by_rows.model, by_rows.optimizer, 1, rows).restore(print)
    Checkpoints(tmp_path / "rows", by_rows.model, by_rows.optimizer, 1, rows).save(20)
    with pytest.raises(CheckpointError, match="its large embedding layers were updated by rows: go on with strategy single"):
        Checkpoints(tmp_path / "rows", dense.model, dense.optimizer, 1).restore(print)


def test_a_deduplicated_gradient_has_each_row_once_and_the_nonzero_rows_of_a_dense_one() -> None:
    sparse = deduplicated(tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0]]), tf.constant([7, 3, 7]), tf.constant([9, 1])))
    assert (sparse.indices.numpy().tolist(), sparse.values.numpy().tolist()) == ([7, 3], [[5.0], [2.0]])
    dense = deduplicated(tf.constant([[0.0], [2.0], [0.0], [3.0]]))
    assert (dense.indices.numpy().tolist(), dense.values.numpy().tolist()) == ([1, 3], [[2.0], [3.0]])
