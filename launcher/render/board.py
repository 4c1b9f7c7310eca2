"""TensorBoard as every container runs it, under Compose and on Kubernetes. Pure."""

from launcher.plan import rules
from launcher.plan.models import Plan

PORT = 6006  # inside its container; what answers outside is the spec's


def command(plan: Plan) -> list[str]:
    """Return how TensorBoard is started on the logs of a run: by the trainer's module where the image has the trainer.

    It listens on every interface of its container: what publishes the port, and policies, say who reaches it.
    """
    start = (
        (*rules.TRAINER[:-1], "trainer.tensorboard") if rules.has_trainer(plan.tasks[0].command) else ("python", "-m", "tensorboard.main")
    )
    return [*start, "--logdir", f"{plan.run_dir}/logs", "--host", "0.0.0.0", "--port", str(PORT)]  # noqa: S104
