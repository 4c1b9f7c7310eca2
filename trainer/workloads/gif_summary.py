"""A film as an image summary: TensorBoard shows an animated GIF where it shows pictures. tf.summary.image writes single PNGs alone."""

import io

import tensorflow as tf
from PIL import Image
from tensorboard.plugins.image import metadata


def write_gif(name: str, gif: bytes, step: int) -> None:
    """Write an animated GIF under `name`, with the default writer."""
    width, height = Image.open(io.BytesIO(gif)).size
    about = metadata.create_summary_metadata(display_name=name, description="")
    tf.summary.write(name, tf.constant([str(width).encode(), str(height).encode(), gif]), step=step, metadata=about)
