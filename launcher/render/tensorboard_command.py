"""TensorBoard as every container runs it, under Compose and on Kubernetes. Pure."""

from launcher.plan import role_rules
from launcher.plan.models import Plan
from launcher.spec.models import ClusterSpec

PORT = 6006  # inside its container; what answers outside is the spec's


def command(spec: ClusterSpec, plan: Plan) -> list[str]:
    """Return how TensorBoard is started on the logs of a run: by the trainer's module where the image has that.

    It listens on every interface of its container: the published port and policies decide who reaches it.
    """
    own = spec.tensorboard.image if spec.tensorboard else None
    ours = own is None and (spec.image is None or spec.train is not None)
    start = (*role_rules.TRAINER[:-1], "trainer.tensorboard") if ours else ("python", "-m", "tensorboard.main")
    return [*start, "--logdir", f"{plan.run_dir}/logs", "--host", "0.0.0.0", "--port", str(PORT)]  # noqa: S104
