"""In which order tasks hear that their supervisor is gone."""

import os

from launcher.backend.local.lifelines import Lifelines


def test_a_later_stop_group_hears_it_only_once_the_one_before_has_ended() -> None:
    lifelines = Lifelines([frozenset({"chief"}), frozenset({"ps-0", "worker-0"})])
    servers = lifelines.of("ps-0")
    assert servers == lifelines.of("worker-0") != lifelines.of("chief")
    (kept,) = lifelines.inherited_by("chief")
    assert lifelines.inherited_by("ps-0") == ()
    os.write(kept, b"x")
    assert os.read(servers, 1) == b"x"


def test_one_stop_group_keeps_nothing_open() -> None:
    assert Lifelines([frozenset({"chief", "worker-0"})]).inherited_by("chief") == ()
