"""``python -m fedax`` is the command ``fedax``."""

from fedax.cli import main

main()
