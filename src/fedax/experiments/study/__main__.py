"""The process of one job: its folder and its core are the arguments."""

import pathlib
import sys

from fedax.experiments.study.running import work

work(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
