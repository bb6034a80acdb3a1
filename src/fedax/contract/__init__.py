"""The contract: what a method is, and what it may ask of the clients it runs on.

``algorithm``: the class that a method derives from. ``oracle``: gradients on a client's own data. ``local``: local
steps and solvers. ``vector``: models as vectors. ``schedule``: hyper-parameters that change. ``regularizers``: ψ and X.
"""
