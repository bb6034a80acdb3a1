"""The report of run folders: one HTML file that needs no network."""

from fedax.experiments.report.page import render, write_report
