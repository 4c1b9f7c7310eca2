"""PyTorch's DistributedDataParallel over gloo, as `torchx run dist.ddp` starts it: one process for each worker.

torchx run --wait --log -s local_cwd dist.ddp -j 1x2 --script benchmarks/torchx_ddp.py -- --steps 2000
"""

import time

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks import task

MARK_EVERY = 20


def build() -> nn.Module:
    """Return the model."""
    model = nn.Sequential(nn.Linear(task.PIXELS, task.HIDDEN), nn.ReLU(), nn.Linear(task.HIDDEN, task.CLASSES))
    for layer, stddev in ((model[0], task.STDDEV_HIDDEN), (model[2], task.STDDEV_OUT)):
        nn.init.trunc_normal_(layer.weight, std=stddev, a=-2 * stddev, b=2 * stddev)
        nn.init.zeros_(layer.bias)
    return model


def main() -> None:
    """Train in step with the others; rank 0 measures."""
    options = task.parse_arguments(__doc__)
    stopwatch = task.Stopwatch(options.steps)
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    torch.manual_seed(rank)
    images, labels = (torch.from_numpy(array) for array in task.training_set())
    labels = labels.long()
    model = DistributedDataParallel(build())
    optimizer = torch.optim.Adam(model.parameters(), lr=task.LEARNING_RATE)
    for step in range(1, options.steps + 1):
        # Indices into tensors in memory: a DataLoader would cost more than the step.
        picked = torch.randint(len(images), (task.BATCH,))
        loss = nn.functional.cross_entropy(model(images[picked].float() / 255), labels[picked])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step == 1 or step % MARK_EVERY == 0:
            stopwatch.mark(step, loss.item(), time.time())
    if rank == 0:
        stopwatch.print()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
