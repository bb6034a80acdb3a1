"""The places where clients are. A place knows where examples and memory are, and nothing of the method.

``device``: all is on the device, and rounds are traced into one program. ``host``: client memory, or the examples too,
are in host memory or a file, and move to the device block by block; with several processes each has its own clients.
Real clients are the matter of :mod:`fedax.sites.protocol`.
"""
