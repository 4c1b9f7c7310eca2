"""The order in which tasks notice that their supervisor has ended."""

import os

from launcher.backend.local.lifelines import Lifelines


def test_a_later_stop_group_notices_it_only_once_the_one_before_has_ended() -> None:
    lifelines = Lifelines([frozenset({"chief"}), frozenset({"ps-0", "worker-0"})])
    servers = lifelines.read_end("ps-0")
    assert servers == lifelines.read_end("worker-0") != lifelines.read_end("chief")
    (inherited,) = lifelines.inherited_by("chief")
    assert lifelines.inherited_by("ps-0") == ()
    os.write(inherited, b"x")
    assert os.read(servers, 1) == b"x"


def test_the_only_stop_group_inherits_no_lifeline() -> None:
    assert Lifelines([frozenset({"chief", "worker-0"})]).inherited_by("chief") == ()
