"""The places where clients are. A place knows where examples and memory are, and nothing of the method.

``device``: all is on the device, and rounds are traced into one program. ``host``: client memory, or the examples too,
are in host memory or a file, and move to the device block by block; with several processes each has its own clients.
``remote`` and ``site``: real clients, the server's side and the node's side. ``nodes``, ``fleet``: messages, and the
nodes that answer them. ``masks``, ``roster``: secure sums. ``policy``, ``answered``: the rules of a node's owner.
``span``: on how few units the sums that left depend.
"""
