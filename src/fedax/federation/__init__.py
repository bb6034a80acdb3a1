"""The federation: who takes part in a round (``participation``), and how much each client works (``work``)."""
