"""The command of TensorBoard's container, in Compose and on Kubernetes. Pure."""

from launcher.plan import role_rules
from launcher.plan.addresses import TENSORBOARD_PORT
from launcher.plan.models import Plan
from launcher.spec.models import ClusterSpec


def command(spec: ClusterSpec, plan: Plan) -> list[str]:
    """Return the command that serves the logs of a run: the trainer's module if the image has it, else TensorBoard's own.

    It listens on every interface of its container: the published port and policies decide who reaches it.
    """
    image = spec.tensorboard.image if spec.tensorboard else None
    has_trainer = image is None and (spec.image is None or spec.train is not None)
    start = (*role_rules.TRAINER_COMMAND[:-1], "trainer.tensorboard") if has_trainer else ("python", "-m", "tensorboard.main")
    return [*start, "--logdir", f"{plan.run_dir}/logs", "--host", "0.0.0.0", "--port", str(TENSORBOARD_PORT)]  # noqa: S104
