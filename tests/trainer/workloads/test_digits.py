"""Synthetic digits: the same for the same seed, each digit equally frequent, and no two equal."""

import numpy as np

from trainer.workloads import digits


def test_same_seed_gives_the_same_digits_and_another_seed_others() -> None:
    images, labels = digits.draw(300, seed=4)
    again, labels_again = digits.draw(300, seed=4)
    np.testing.assert_array_equal(images, again)
    np.testing.assert_array_equal(labels, labels_again)
    others, _ = digits.draw(300, seed=5)
    assert (images != others).any(axis=(1, 2)).all()


def test_digits_have_the_shape_of_mnist_a_wide_range_and_similar_frequencies() -> None:
    images, labels = digits.draw(3001, seed=0)
    assert images.shape == (3001, 28, 28)
    assert labels.shape == (3001,)
    assert images.dtype.name == labels.dtype.name == "uint8"
    assert np.bincount(labels, minlength=10).min() > 200
    assert len(np.unique(images.reshape(3001, -1), axis=0)) == 3001
    # Ink on a dark background with a dark border, as in the published set.
    assert images.max() > 250
    assert 15 < images.mean() < 50
    assert images[:, 0].mean() < 12


def test_a_digit_looks_most_like_its_own_kind() -> None:
    images, labels = digits.draw(2000, seed=1)
    means = np.array([images[labels == kind].mean(axis=0) for kind in range(10)])
    for digit in range(10):
        own = images[labels == digit].astype(float)
        distances = ((own[:, np.newaxis] - means) ** 2).sum(axis=(2, 3))
        assert np.bincount(distances.argmin(axis=1), minlength=10).argmax() == digit
