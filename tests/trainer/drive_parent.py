"""Runs trainer.parent on a job given as JSON in argv[1], so that tests choose its timeouts; not a test itself."""

import json
import os
import sys

from trainer.events import Reporter
from trainer.output import Output
from trainer.parent import run_parent
from trainer.parent_job import ParentJob, StallPolicy, Timeouts
from trainer.restart_in_place import RestartPolicy

job = json.loads(sys.argv[1])
job["command"] = tuple(job["command"])
job["watched_workers"] = tuple(job.get("watched_workers", ()))
job["policy"] = RestartPolicy(**{"first_delay": 0.1, "longest_delay": 0.4, **job.get("policy", {})})
job["timeouts"] = Timeouts(**job.get("timeouts", {}))
job["stalls"] = StallPolicy(**job.get("stalls", {}))
output = Output()
code = run_parent(ParentJob(**job), Reporter(os.environ.get("TASK", "chief"), output), output)
os._exit(code)
