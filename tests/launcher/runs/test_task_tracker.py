"""The recorded state of a task: its restarts."""

from launcher.runs.task_tracker import TaskTracker


def test_of_many_restarts_the_newest_are_remembered_and_all_are_counted() -> None:
    tracker = TaskTracker("chief")
    for number in range(1200):
        tracker.mark_restarting(f"cause {number}", counts=True)
    status = tracker.status()
    assert (len(status.restarts), status.restarts[-1].cause) == (500, "cause 1199")
    assert (status.restart_count, tracker.restarts_used, tracker.attempt) == (1200, 1200, 1201)
