"""A comparison in a real notebook: the display during the run and after it, without warnings."""

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: fedax[notebook]")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: fedax[notebook]")
pytest.importorskip("ipykernel", reason="ipykernel is not installed: fedax[notebook]")

CELLS = [
    """
import warnings
warnings.simplefilter("error")
import fedax
data, task = fedax.data.quadratics(clients=4, dimension=2), fedax.tasks.quadratic(2)
""",
    """
methods = {"mine & <others>": fedax.create("fedavg", lr=0.01), "scaffold": fedax.create("scaffold", lr=0.05)}
found = fedax.compare(methods, task, data, rounds=30, seeds=2, work=fedax.Steps(3))
found
""",
    "found.plot(x='bytes')",
    "fedax.simulate(methods['scaffold'], task, data, rounds=5)",
    "print(found)",
]


class Client(nbclient.NotebookClient):
    """Records each state of the display while a cell runs."""

    def process_message(self, message, cell, cell_index):
        if message["msg_type"] == "update_display_data":
            self.seen.append(message["content"]["data"]["text/html"])
        return super().process_message(message, cell, cell_index)


def test_the_story_of_a_notebook(tmp_path):
    cells = [nbformat.v4.new_code_cell(cell.strip()) for cell in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    client = Client(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}})
    client.seen = []
    client.execute()
    compared, drawn, run, printed = (cell.outputs for cell in cells[1:])
    assert [output.output_type for output in compared] == ["display_data", "execute_result"]
    assert compared[0].data["text/html"] == ""  # the bar is gone
    assert any('<progress max="1"' in text and "mine &amp; &lt;others&gt;, seed" in text for text in client.seen)
    shown = compared[1].data["text/html"]
    assert (
        shown.startswith("<p>scaffold is best: train loss ")
        and "Next is mine &amp; &lt;others&gt;" in shown
        and "<others>" not in shown
    )
    assert "data:image/svg+xml;base64," in shown and len(shown) < 150_000
    assert compared[1].data["text/plain"] == printed[0].text.strip()
    assert "image/png" in drawn[0].data and "Round 5" in run[1].data["text/html"]
    assert not any(
        output.output_type == "stream" and output.name == "stderr" for cell in cells for output in cell.outputs
    )
