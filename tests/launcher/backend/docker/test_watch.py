"""Answers of the engine that bring nothing for long are given up, so that who reads them asks anew."""

import time

from launcher.backend.docker.watch import _Answers


class Answer:
    """What is closed to end who reads it; it may be closed already."""

    def __init__(self, *, broken: bool = False) -> None:
        self.closed = 0
        self._broken = broken

    def close(self) -> None:
        self.closed += 1
        if self._broken:
            raise OSError(9, "Bad file descriptor")


def test_only_those_that_are_silent_are_closed_and_once() -> None:
    answers, silent, talks, broken = _Answers(), Answer(), Answer(), Answer(broken=True)
    answers.opened("broken", broken)
    answers.opened("silent", silent)
    answers.opened("talks", talks)
    answers.close(silent_for=60)
    assert (silent.closed, talks.closed, broken.closed) == (0, 0, 0)
    time.sleep(0.3)
    answers.heard("talks")
    for _ in range(2):
        answers.close(silent_for=0.2)
        assert (silent.closed, talks.closed, broken.closed) == (1, 0, 1)
    # Who reads it asks again, and is heard of anew.
    again = Answer()
    answers.opened("silent", again)
    answers.close(silent_for=0.2)
    answers.heard("nobody")
    assert again.closed == 0
    answers.close(silent_for=0)
    assert (again.closed, talks.closed) == (1, 1)
