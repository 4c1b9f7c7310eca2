"""The program inside each task: TF_CONFIG makes it chief, worker, ps or evaluator."""

__version__ = "0.1.0"
