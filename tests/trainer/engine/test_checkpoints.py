"""Checkpoints that are complete, kept in number, and never lost for another model's."""

from pathlib import Path

import numpy as np
import pytest

from tests.trainer.engine.small import Small, small_job
from trainer.engine import compute
from trainer.engine.checkpoints import CheckpointError, Checkpoints


def built(**params: object) -> compute.Built:
    return compute.build(Small(params), small_job(1))


def checkpoints(directory: Path, state: compute.Built, keep: int = 3) -> Checkpoints:
    return Checkpoints(directory, state.model, state.optimizer, keep)


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    first = built()
    first.model.trainable_variables[0].assign(np.full((4, 8), 7.0))
    first.optimizer.iterations.assign(42)
    checkpoints(tmp_path, first).save(40)
    second = built()
    restored = checkpoints(tmp_path, second).restore(pytest.fail)
    assert restored is not None
    assert restored.step == 40
    np.testing.assert_array_equal(second.model.trainable_variables[0].numpy(), np.full((4, 8), 7.0))
    assert int(second.optimizer.iterations.numpy()) == 42


def test_the_newest_few_are_kept(tmp_path: Path) -> None:
    kept = checkpoints(tmp_path, built(), keep=2)
    for step in (10, 20, 30, 40):
        kept.save(step)
    assert sorted(path.name for path in tmp_path.glob("*.index")) == ["ckpt-30.index", "ckpt-40.index"]
    again = checkpoints(tmp_path, built(), keep=2)
    again.save(50)
    assert sorted(path.name for path in tmp_path.glob("*.index")) == ["ckpt-40.index", "ckpt-50.index"]


def test_nothing_saved_is_nothing_restored(tmp_path: Path) -> None:
    assert checkpoints(tmp_path, built()).restore(pytest.fail) is None


@pytest.mark.parametrize("damage", ["index", "data"])
def test_a_damaged_checkpoint_is_told_and_the_one_before_taken(tmp_path: Path, damage: str) -> None:
    saved = checkpoints(tmp_path, built())
    saved.save(10)
    saved.save(20)
    victim = next(tmp_path.glob(f"ckpt-20.{damage}*"))
    victim.write_bytes(victim.read_bytes()[: victim.stat().st_size // 2])
    told: list[str] = []
    restored = checkpoints(tmp_path, built()).restore(told.append)
    assert restored is not None
    assert restored.step == 10
    assert len(told) == 1
    assert "ckpt-20" in told[0]
    assert victim.exists()


def test_another_models_checkpoint_is_an_error_and_stays(tmp_path: Path) -> None:
    checkpoints(tmp_path, built()).save(10)
    with pytest.raises(CheckpointError, match=r"ckpt-10 is of another model or optimizer.*another name"):
        checkpoints(tmp_path, built(normalised=True)).restore(pytest.fail)
    assert (tmp_path / "ckpt-10.index").exists()


def test_checkpoints_that_cannot_be_read_at_all_are_not_trained_over(tmp_path: Path) -> None:
    checkpoints(tmp_path, built()).save(10)
    next(tmp_path.glob("ckpt-10.index")).write_bytes(b"")
    with pytest.raises(CheckpointError, match="none of the 1 checkpoints can be read"):
        checkpoints(tmp_path, built()).restore(lambda _: None)


@pytest.mark.parametrize("damage", ["gone", "empty"])
def test_checkpoints_are_found_without_the_file_that_names_them(tmp_path: Path, damage: str) -> None:
    saved = checkpoints(tmp_path, built())
    for step in (90, 100):
        saved.save(step)
    (tmp_path / "checkpoint").unlink()
    if damage == "empty":
        (tmp_path / "checkpoint").touch()
    told: list[str] = []
    again = checkpoints(tmp_path, built(), keep=2)
    restored = again.restore(told.append)
    assert restored is not None
    assert restored.step == 100
    assert "missing or damaged" in told[0]
    again.save(110)
    assert sorted(path.name for path in tmp_path.glob("*.index")) == ["ckpt-100.index", "ckpt-110.index"]


def test_an_empty_file_of_names_alone_is_nothing_to_go_on_from(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").touch()
    assert checkpoints(tmp_path, built()).restore(pytest.fail) is None
