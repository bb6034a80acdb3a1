"""Tests of deployments, many of them over real processes."""
