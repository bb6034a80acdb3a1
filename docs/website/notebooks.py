"""Tutorials: notebooks that are kept without outputs, executed here, and shown as pages with their outputs."""

import asyncio
import base64
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from docs.website.pages import ROOT

SECONDS = 120  # for one cell, on a busy machine
# Tracing makes so many objects that Python's garbage collector would take a sixth of the time.
RARELY = "--IPKernelApp.exec_lines=import gc; gc.set_threshold(50_000, 10, 10)"


def missing(notebook: Any) -> str | None:
    """The environment variable that a notebook needs, by its metadata, and that is not set."""
    needed = notebook.metadata.get("fedax", {}).get("needs")
    return None if needed is None or os.environ.get(needed) else str(needed)


def execute(notebook: str) -> Any:
    """The notebook with its outputs, from a kernel in an empty folder; without them where something is :func:`missing`.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    import nbformat
    from nbclient import NotebookClient
    from traitlets.config import Config

    content = nbformat.read(ROOT / notebook, as_version=4)
    if (needed := missing(content)) is not None:
        hint = f"*Shown without outputs: this site was built where `{needed}` is not set.*"
        content.cells.insert(1, nbformat.v4.new_markdown_cell(hint))
        return content
    source = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    commands = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {"PYTHONPATH": source, "PATH": commands, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}  # of frozen modules
    environment = os.environ | environment
    with tempfile.TemporaryDirectory() as folder:
        # Sockets are files: the kernel would warn that ports are open to others.
        socket = Config(KernelManager={"transport": "ipc", "ip": os.path.join(folder, ".kernel")})
        place = {"metadata": {"path": folder}}
        asked = {"timeout": SECONDS, "startup_timeout": SECONDS, "extra_arguments": [RARELY]}
        asked["coalesce_streams"] = True  # lines come in pieces
        client = NotebookClient(content, **asked, resources=place, config=socket)
        asyncio.run(client.async_execute(env=environment))
    return content


def markdown(notebook: Any, page: Path) -> str:
    """An executed notebook as Markdown; its pictures are written beside the page.

    Args:
        notebook: as of :func:`execute`.
        page: where the Markdown will be.
    """
    parts, pictures = [], 0
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        if cell.cell_type != "code" or not cell.source.strip():
            continue
        language = "python"
        if magic := re.match(r"%%(bash|sh|writefile)\b.*\n", cell.source):
            language = "python" if magic[1] == "writefile" else "bash"
        parts.append(fenced(cell.source, language))
        for output in cell.outputs:
            data = output.get("data", {})
            if output.output_type == "stream":
                if output.name == "stdout":
                    parts.append(fenced(plain(output.text), "text", "output"))
            elif "text/html" in data:
                if not data["text/html"]:  # a bar of progress that is gone
                    continue
                parts.append(f'<div class="output">\n{data["text/html"].strip()}\n</div>')
            elif picture := next((kind for kind in ("image/svg+xml", "image/png") if kind in data), None):
                pictures += 1
                name = f"{page.stem}-{pictures}.{picture[6:9]}"
                shown = data[picture]
                content = shown.encode() if picture.startswith("image/svg") else base64.b64decode(shown)
                (page.parent / name).write_bytes(content)
                parts.append(f"![{plain(data.get('text/plain', 'figure'))}]({name})".replace("\n", " "))
            elif "text/plain" in data:
                parts.append(fenced(plain(data["text/plain"]), "text", "output"))
    return "\n\n".join(parts) + "\n"


def fenced(text: str, language: str, kind: str = "") -> str:
    """A block of code whose fence is longer than any in it.

    Example:
        >>> print(fenced("```", "text", "output"))
        ````{ .text .output }
        ```
        ````
    """
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall(r"`{3,}", text))])
    head = f"{{ .{language} .{kind} }}" if kind else language
    return f"{fence}{head}\n{text.rstrip()}\n{fence}"


def plain(text: str) -> str:
    """Text without the signs by which terminals colour it, and with the last state of each line that was overwritten.

    Example:
        >>> plain("\\x1b[31mred\\x1b[0m 10 %\\rdone")
        'done'
    """
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return "\n".join(line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))
