"""What events of a task say in words, for the reasons that statuses and logs give."""

from dataclasses import dataclass

from launcher.backend.progress import text
from trainer.events import Event

LAST_LINE = 300  # characters of a task's own words that a reason quotes


def said(event: Event) -> str:
    """Return the cause that an event gives, with its detail; empty when it gives none."""
    return ": ".join(_short(part) for part in (text(event, "cause"), text(event, "detail")) if part)


def _short(line: str) -> str:
    """Return a line, a long one without its middle: what it is stands at its start, where in the user's code at its end."""
    if len(line) <= LAST_LINE:
        return line
    end = LAST_LINE // 2
    return f"{line[: LAST_LINE - end - 5]} ... {line[-end:]}"


@dataclass
class Start:
    """Whether a task's training process is still on its way: who looks for its peers may find the last a moment after it was ready."""

    ready: bool = False

    def waits(self, event: Event) -> bool:
        """Take in an event that the task told of itself; return whether it waits for its peers."""
        kind = event["event"]
        if kind in {"started", "ready"}:
            self.ready = kind == "ready"
        return kind == "waiting" and not self.ready


def waiting(event: Event) -> str:
    """Return whom a task waits for, by its event `waiting`."""
    missing = event.get("missing")
    names = [str(peer.get("task")) for peer in missing if isinstance(peer, dict)] if isinstance(missing, list) else []
    return f"waiting for {', '.join(names)}" if names else "waiting for peers"
