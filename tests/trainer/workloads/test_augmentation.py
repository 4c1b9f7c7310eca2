"""Augmentation: each example in its own way, the same for the same place, and the arithmetic of tf.image."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.workloads import augmentation

PICTURES = np.random.default_rng(1).integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)


def distorted(images: np.ndarray, seed: int = 3, first: int = 0) -> np.ndarray:
    result: np.ndarray = augmentation.distorted(tf.constant(images), tf.constant(seed, tf.int64), tf.constant(first, tf.int64)).numpy()
    return result


def draws(seed: int, first: int, count: int) -> np.ndarray:
    result: np.ndarray = augmentation._draws(tf.constant(seed, tf.int64), tf.constant(first, tf.int64), tf.constant(count)).numpy()
    return result


def test_shape_type_and_standardization() -> None:
    images = distorted(PICTURES)
    assert (images.shape, images.dtype.name) == ((6, 24, 24, 3), "float32")
    np.testing.assert_allclose(images.mean(axis=(1, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(images.std(axis=(1, 2, 3)), 1, rtol=1e-4)


def test_a_pipeline_has_static_shapes() -> None:
    data = tf.data.Dataset.from_tensors(PICTURES).map(
        lambda images: augmentation.distorted(images, tf.constant(0, tf.int64), tf.constant(0, tf.int64))
    )
    assert data.element_spec.shape == (6, 24, 24, 3)


def test_the_same_place_gives_the_same_pictures_and_other_places_others() -> None:
    np.testing.assert_array_equal(distorted(PICTURES), distorted(PICTURES))
    assert (distorted(PICTURES) != distorted(PICTURES, seed=4)).any(axis=(1, 2, 3)).all()
    assert (distorted(PICTURES) != distorted(PICTURES, first=6)).any(axis=(1, 2, 3)).all()


def test_half_a_batch_is_distorted_as_in_the_whole_batch() -> None:
    for first in (0, 10**12):
        whole = distorted(PICTURES, first=first)
        np.testing.assert_array_equal(distorted(PICTURES[3:], first=first + 3), whole[3:])


def test_draws_are_uniform_and_independent() -> None:
    values = draws(seed=5, first=0, count=4000)
    assert values.min() >= 0
    assert values.max() < 1
    np.testing.assert_allclose(values.mean(axis=0), 0.5, atol=0.02)
    np.testing.assert_allclose(values.var(axis=0), 1 / 12, rtol=0.05)
    correlation = np.corrcoef(values.T)
    assert abs(correlation - np.eye(8)).max() < 0.06
    assert abs(np.corrcoef(values[:-1, 0], values[1:, 0])[0, 1]) < 0.06


def test_each_picture_equals_that_of_tf_image_with_the_same_draws() -> None:
    images = distorted(PICTURES, seed=9, first=100)
    mirrored = set()
    for index, (down, right, mirror, light, strength, *_) in enumerate(draws(9, 100, 6)):
        image = tf.image.crop_to_bounding_box(PICTURES[index], int(down * 9), int(right * 9), 24, 24)
        image = tf.image.flip_left_right(image) if mirror < 0.5 else image
        mirrored.add(mirror < 0.5)
        image = tf.image.adjust_brightness(tf.cast(image, tf.float32), -63 + 126 * light)
        image = tf.image.adjust_contrast(image, 0.2 + 1.6 * strength)
        np.testing.assert_allclose(images[index], tf.image.per_image_standardization(image), rtol=1e-3, atol=1e-4)
    assert mirrored == {True, False}


def test_every_place_can_be_cut_out() -> None:
    values = draws(seed=0, first=0, count=2000)
    assert set((values[:, 0] * 9).astype(int)) == set(range(9))


def test_evaluation_takes_the_middle() -> None:
    expected = [tf.image.per_image_standardization(tf.image.resize_with_crop_or_pad(image, 24, 24)) for image in PICTURES]
    np.testing.assert_allclose(augmentation.central(tf.constant(PICTURES)), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("value", [0, 200])
def test_a_picture_of_one_colour_is_all_zero(value: int) -> None:
    np.testing.assert_array_equal(augmentation.central(tf.fill([2, 32, 32, 3], tf.constant(value, tf.uint8))), np.zeros((2, 24, 24, 3)))
