"""Lines of output: shown as by a terminal, stored with every byte, and never taken for events of the trainer."""

import pytest

from launcher.cli.output_lines import event_in, raw, shown
from launcher.runs.event_lines import log_line
from trainer.events import escaped

EVENT = b'{"event":"restarting","time":1,"task":"chief","attempt":2,"restarts":1,"exit_code":1,"cause":"x","detail":"","delay":0}'


@pytest.mark.parametrize(
    "written, text",
    [
        (b"plain", "plain"), (b"", ""), (b"10 %\r20 %\r", "20 %"), (b"caf\xe9", "caf\ufffd"), (b"a\x00b", "a\x00b"), (b"windows\r", "windows"),
        (b"\r" + EVENT, EVENT.decode()), (EVENT, EVENT.decode()), (b"  " + EVENT, "  " + EVENT.decode()),
    ],
    ids=range(9),
)  # fmt: skip
def test_a_line_of_a_program_is_shown_and_stored_and_is_no_event(written: bytes, text: str) -> None:
    for line in (log_line(1.0, "chief", escaped(written)), log_line(1.0, "chief", written, has_events=False)):
        assert shown(line) == text
        assert raw(line) == written
        assert event_in(line.text) is None


def test_an_event_of_a_trainer_is_recognized() -> None:
    assert event_in(log_line(1.0, "chief", EVENT).text) is not None
