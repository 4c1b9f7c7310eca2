"""Runs trainer.parent with the configuration given as JSON in argv[1], so that tests choose its timeouts; not a test itself."""

import json
import os
import sys

from trainer.events import Reporter
from trainer.output import Output
from trainer.parent import run_parent
from trainer.parent_config import ParentConfig, StallPolicy, Timeouts
from trainer.restart_in_place import RestartPolicy

config = json.loads(sys.argv[1])
config["command"] = tuple(config["command"])
config["watched_workers"] = tuple(config.get("watched_workers", ()))
config["policy"] = RestartPolicy(**{"first_delay": 0.1, "longest_delay": 0.4, **config.get("policy", {})})
config["timeouts"] = Timeouts(**config.get("timeouts", {}))
config["stalls"] = StallPolicy(**config.get("stalls", {}))
output = Output()
code = run_parent(ParentConfig(**config), Reporter(os.environ.get("TASK", "chief"), output), output)
os._exit(code)
