"""Real sites: nodes whose data stay where they are, and the link between them and a run."""
