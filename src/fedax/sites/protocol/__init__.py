"""What a server and its nodes say to each other, what a node allows, and how a run with real nodes goes."""
