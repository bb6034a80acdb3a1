"""Doctests of what needs Flower are collected only where it is installed."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("flwr") else ["src/fedax/flower/*"]
