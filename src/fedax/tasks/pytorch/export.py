"""The parts that need PyTorch: a module's export, and tensors. The only file of fedax that imports torch."""

import contextlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedax.errors import ConfigError, FedaxError
from fedax.tasks.pytorch.operators.images import BATCH_STATISTICS


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        hint = "is not installed: pip install 'fedax[torch]'. fedax.tasks.from_export reads a .pt2 file without it"
        raise ConfigError("torch", None, hint) from error
    return torch


def exported(module: Any, example: Any) -> bytes:
    """The module's export for any number of examples, as ``torch.export.save`` writes it.

    Raises:
        ConfigError: no module, BatchNorm in training mode, or PyTorch cannot export it.
    """
    torch = _torch()
    if not isinstance(module, torch.nn.Module):
        raise ConfigError("module", type(module).__name__, "give a torch.nn.Module")
    for name, layer in module.named_modules():
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm) and layer.training:
            raise ConfigError("module", f"{name} ({type(layer).__name__})", BATCH_STATISTICS)
    batch = tuple(_batch(torch, one) for one in (example if isinstance(example, tuple) else (example,)))
    modes = {layer: layer.training for layer in module.modules()}
    try:
        for layer in modes:  # dropout is part of the graph; only in training it gets a key
            layer.training = not isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)
        content = io.BytesIO()
        with _quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about its own recurrent layers
            axis = torch.export.Dim("batch")
            program = torch.export.export(module, batch, dynamic_shapes=tuple({0: axis} for _ in batch))
            torch.export.save(program, content)
    except FedaxError:
        raise
    except Exception as error:  # torch raises errors of many kinds
        detail = " ".join(str(error).split())[:500]
        hint = f"torch.export cannot export it for any number of examples: {type(error).__name__}: {detail}"
        raise ConfigError("module", type(module).__name__, hint) from error
    finally:
        for layer, training in modes.items():
            layer.training = training
    return content.getvalue()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress torch's log and graphs, which repeat the error at length; other loggers are not affected.

    Nothing is suppressed if ``TORCH_LOGS`` is set.
    """
    if os.environ.get("TORCH_LOGS"):
        yield
        return
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = {each for logger in loggers for each in getattr(logger, "handlers", ())} | {logging.lastResort}

    def others(record: logging.LogRecord) -> bool:
        return record.name.partition(".")[0] != "torch"

    printed = io.StringIO()
    for handler in handlers:
        if handler is not None:
            handler.addFilter(others)
    try:
        with contextlib.redirect_stderr(printed):
            yield
        sys.stderr.write(printed.getvalue())  # if the export worked, this is the module's own output
    finally:
        for handler in handlers:
            if handler is not None:
                handler.removeFilter(others)


def _batch(torch: Any, one: Any) -> Any:
    """The example as a tensor of at least two examples: torch.export takes a single one for a constant."""
    batch = one if isinstance(one, torch.Tensor) else torch.from_numpy(np.array(one))
    if batch.ndim == 0 or len(batch) == 0:
        raise ConfigError("example", f"shape {tuple(batch.shape)}", "give a batch, [b, ...], of at least one example")
    batch = batch.detach().cpu()
    return torch.cat([batch] * 2) if len(batch) == 1 else batch


def tensor(value: np.ndarray) -> Any:
    """A tensor of these numbers."""
    torch = _torch()
    if value.dtype.name == "bfloat16":
        return torch.from_numpy(value.astype(np.float32)).to(torch.bfloat16)
    return torch.from_numpy(value.copy())
