"""Independent NumPy transcriptions of the published methods: client by client, loop by loop, in float64."""
