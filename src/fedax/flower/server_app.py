"""Flower's ServerApp, for Flower's simulation; over a link the server is the process of ``fedax deploy run`` itself."""

import flwr.app
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: flwr.app.Context) -> None:
    """Run the job that the run's settings describe."""
    from fedax.flower import local

    local.serve(grid, context.run_config)
