"""Steps that are read from BuildKit's output. The samples were written by BuildKit 0.8 (Docker 20.10) and 0.23 (Docker 28)."""

import pytest

from launcher.image_build.steps import Output, ProgressParser, Step

FINE = """\
#0 building with "default" instance using docker driver

#3 [internal] load metadata for docker.io/library/python:3.11-slim-bookworm
#3 DONE 0.0s

#9 [install-cpu 2/2] RUN --mount=type=cache,id=tf-launcher-pip,target=/cache     sh /build/install.sh /build/lock.txt
#9 0.512 Collecting absl-py==2.5.1
#9 25.79 Successfully installed absl-py-2.5.1
#9 DONE 25.8s

#10 [program 4/4] RUN chmod -R u=rwX,go=rX /opt/trainer && python -m compileall -q /opt/trainer
#10 CACHED

#16 exporting to image
#16 exporting layers 3.4s done
#16 naming to docker.io/tf-launcher/trainer:0.1.0 done
#16 DONE 3.4s
"""

FAILED = """\
#9 [install-cpu 2/2] RUN sh /build/install.sh /build/lock.txt
#9 0.7 ERROR: no such file
#9 ERROR: process "/bin/sh -c sh /build/install.sh /build/lock.txt" did not complete successfully: exit code: 1
------
 > [install-cpu 2/2] RUN sh /build/install.sh /build/lock.txt:
0.7 ERROR: no such file
------
Dockerfile:21
--------------------
ERROR: failed to solve: process did not complete successfully: exit code: 1
"""


def read(text: str) -> tuple[ProgressParser, list[Step | Output]]:
    steps = ProgressParser()
    return steps, [event for line in text.splitlines() if (event := steps.read(line)) is not None]


def test_steps_begin_have_output_and_end() -> None:
    _, events = read(FINE)
    installing = "installing TensorFlow and its dependencies"
    assert events == [
        Step("looking for the base image"),
        Step("looking for the base image", 0.0),
        Step(installing),
        Output(installing, "Collecting absl-py==2.5.1"),
        Output(installing, "Successfully installed absl-py-2.5.1"),
        Step(installing, 25.8),
        Step("compiling the trainer"),
        Step("writing the image"),
        Step("writing the image", 3.4),
    ]


def test_a_failure_keeps_the_last_lines() -> None:
    steps, _ = read(FAILED)
    assert next(iter(steps.last)) == "ERROR: no such file"
    assert steps.last[-1].startswith("ERROR: failed to solve")


@pytest.mark.parametrize("line", ["", "#", "#x y", "#5", "-----", "DONE 1.0s", "#7 transferring context: 2B done", "\x1b[0m"])
def test_other_lines_are_ignored(line: str) -> None:
    assert ProgressParser().read(line) is None
