"""The program in the image: becomes chief, worker, ps or evaluator by TF_CONFIG and trains."""

__version__ = "0.1.0"
