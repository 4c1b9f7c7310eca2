"""Synthetic pictures: the same for the same seed, each kind equally frequent, and no two equal."""

import numpy as np

from trainer.workloads import patterns


def test_same_seed_gives_the_same_pictures_and_another_seed_others() -> None:
    images, kinds = patterns.draw(300, seed=4)
    again, kinds_again = patterns.draw(300, seed=4)
    np.testing.assert_array_equal(images, again)
    np.testing.assert_array_equal(kinds, kinds_again)
    others, _ = patterns.draw(300, seed=5)
    assert (images != others).any(axis=(1, 2, 3)).all()


def test_pictures_have_the_shape_of_cifar_10_a_wide_range_and_similar_frequencies() -> None:
    images, kinds = patterns.draw(2001, seed=0)
    assert images.shape == (2001, 32, 32, 3)
    assert kinds.shape == (2001,)
    assert images.dtype.name == kinds.dtype.name == "uint8"
    assert np.bincount(kinds, minlength=10).min() > 140
    assert len(np.unique(images.reshape(2001, -1), axis=0)) == 2001
    assert images.min() < 10
    assert images.max() > 245


def test_no_kind_shows_in_the_mean_of_its_pixels() -> None:
    images, kinds = patterns.draw(4000, seed=1)
    means = np.array([images[kinds == kind].mean(axis=0) for kind in range(10)])
    own = images[::10].astype(float)
    nearest = ((own[:, np.newaxis] - means) ** 2).sum(axis=(2, 3, 4)).argmin(axis=1)
    assert (nearest == kinds[::10]).mean() < 0.35
