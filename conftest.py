"""Doctests of what needs Flower or PyTorch are collected only where it is installed."""

import importlib.util

collect_ignore_glob = ["tests/flower/kills.py", "tests/flower/federation.py"]  # they have no doctests
if not importlib.util.find_spec("flwr"):
    collect_ignore_glob.append("src/fedax/flower/*")
if not importlib.util.find_spec("torch"):
    collect_ignore_glob.append("tests/tasks/torch_models.py")
