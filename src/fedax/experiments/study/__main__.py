"""The process of some jobs, one after another: its core and their folders are the arguments."""

import pathlib
import sys
import time

from fedax.experiments.study.running import work

began = 0.0
for place in sys.argv[2:]:
    work(pathlib.Path(place), int(sys.argv[1]), began)
    began = time.process_time()
