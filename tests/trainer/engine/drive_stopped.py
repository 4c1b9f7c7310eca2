"""One of three tasks that compute means until a peer is lost; prints the seconds of each mean that took long, and the error.

python drive_stopped.py INDEX ADDRESS ADDRESS ADDRESS
"""

import json
import os
import sys
import time
from typing import Any

NAMES = ("chief", "worker-0", "worker-1")
LONG = 5.0  # seconds


def report(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def main(index: int, addresses: list[str]) -> None:
    """Be task `index`."""
    cluster = {"chief": addresses[:1], "worker": addresses[1:]}
    task = {"type": "worker", "index": index - 1} if index else {"type": "chief", "index": 0}
    os.environ |= {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task}), "GRPC_FAIL_FAST": "use_caller"}
    import tensorflow as tf

    from trainer.engine.collectives.all_reduce import AllReduce
    from trainer.engine.session import PeerLostError

    all_reduce = AllReduce(len(NAMES), index)
    all_reduce.connect(NAMES, addresses)

    @tf.function(autograph=False)
    def mean() -> tf.Tensor:
        return all_reduce.mean_gradients([tf.constant([float(index)])])[0][0]

    def step() -> float:
        with all_reduce.translate_peer_errors():
            value = float(mean()[0])
        all_reduce.barrier()  # as at the end of a run
        return value

    try:
        value = step()
        last = time.monotonic()  # before the report, because the test may stop this task as soon as it reads it
        report(mean=value)
        while True:
            value = step()
            before, last = last, time.monotonic()
            if (took := last - before) > LONG:
                report(mean=value, after=took)
            time.sleep(0.1)
    except PeerLostError as error:
        report(lost=str(error), after=time.monotonic() - last)
    finally:
        os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
