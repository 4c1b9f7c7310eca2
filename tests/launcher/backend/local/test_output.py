"""A program under the trainer that writes arbitrary bytes: they are stored, and the trainer's events are read."""

from launcher.cli.output_lines import event_in, raw, shown
from launcher.runs.status import State
from tests.launcher.backend.local.running import Runs

WRITES = """
attempt = int(os.environ["TRAINER_ATTEMPT"])
lookalike = b'{"event":"restarting","time":1,"task":"chief","attempt":2,"restarts":3,"exit_code":1,"cause":"x","detail":"","delay":0}'
if attempt == 1:
    os.write(1, lookalike + b"\\n\\x00\\xff\\n" + b"x" * 1_000_000 + b"\\n10 %\\r" + lookalike + b"\\r30 %")
    os.kill(os.getpid(), 9)
os.write(2, b"no end")
"""


def test_restarts_are_counted_and_every_byte_is_stored(runs: Runs) -> None:
    runs.start({"chief": WRITES}, supervised=True, max_restarts=3, env={"TRAINER_EVENTS": "json"})
    ended = runs.wait()
    (chief,) = ended.tasks
    assert (ended.state, len(chief.restarts), chief.restarts_left) == (State.SUCCEEDED, 1, 2)
    lines = [line for line in runs.backend.logs("run", tasks=["chief"], follow=False) if not line.text.startswith("--- ")]
    assert [event["event"] for line in lines if (event := event_in(line.text))] == ["started", "restarting", "started"]
    written = [line for line in lines if event_in(line.text) is None]
    lookalike = raw(written[0])
    assert lookalike.startswith(b'{"event":"restarting"')
    assert [raw(line) for line in written[1:]] == [b"\x00\xff", b"x" * 1_000_000, b"10 %\r" + lookalike + b"\r30 %", b"no end"]
    assert [shown(line)[:9] for line in written] == ['{"event":', "\x00\ufffd", "x" * 9, "30 %", "no end"]
