"""Twelve PyTorch models, and the files of tests/tasks/pt2, which ``python -m tests.tasks.torch_models`` writes."""

import functools
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, i: int, o: int, stride: int, groups: int):
        super().__init__()
        self.conv1 = nn.Conv2d(i, o, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(groups, o)
        self.conv2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(groups, o)
        self.shortcut = None
        if stride > 1 or i != o:
            self.shortcut = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.GroupNorm(groups, o))

    def forward(self, x: Any) -> Any:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = self.norm2(self.conv2(y))
        y += x if self.shortcut is None else self.shortcut(x)
        return F.relu(y)


class ResNet18(nn.Module):
    def __init__(self, width: int = 8, groups: int = 2, classes: int = 5):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.GroupNorm(groups, width))
        plan = [(1, 1), (1, 1), (2, 2), (2, 1), (4, 2), (4, 1), (8, 2), (8, 1)]
        blocks, i = [], width
        for times, stride in plan:
            blocks.append(Block(i, times * width, stride, groups))
            i = times * width
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(i, classes)

    def forward(self, x: Any) -> Any:
        x = self.blocks(F.relu(self.stem(x)))
        return self.head(torch.flatten(self.pool(x), 1))


def vgg(classes: int = 5) -> nn.Module:
    layers: list[nn.Module] = []
    for i, o in ((3, 6), (6, 8)):
        layers += [nn.Conv2d(i, o, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2, 2)]
    head = [nn.Linear(8 * 16, 12), nn.ReLU(), nn.Linear(12, classes)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d((4, 4)), nn.Flatten(), *head)


def mobile(classes: int = 5) -> nn.Module:
    """Depthwise, dilated and grouped convolutions, ReLU6, hard swish, squeeze and excitation."""

    class Squeeze(nn.Module):
        def __init__(self, c: int):
            super().__init__()
            self.down, self.up = nn.Conv2d(c, 2, 1), nn.Conv2d(2, c, 1)

        def forward(self, x: Any) -> Any:
            return x * F.hardsigmoid(self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1)))))

    def block(i: int, o: int, stride: int, **more: Any) -> list[nn.Module]:
        depthwise = nn.Conv2d(i, i, 3, stride, more.get("dilation", 1), groups=i, bias=False, **more)
        return [depthwise, nn.GroupNorm(2, i), nn.ReLU6(), nn.Conv2d(i, o, 1), nn.Hardswish()]

    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1),
        nn.ReLU6(inplace=True),
        *block(8, 12, 2),
        Squeeze(12),
        *block(12, 8, 1, dilation=2),
        nn.Conv2d(8, 8, 3, 1, 1, groups=4),
        nn.SiLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 4, classes),
    )


class Recurrent(nn.Module):
    def __init__(self, kind: type, classes: int = 5, **more: Any):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.core = kind(6, 7, num_layers=2, batch_first=True, **more)
        self.head = nn.Linear(7 * (1 + bool(more.get("bidirectional"))), classes)

    def forward(self, tokens: Any) -> Any:
        out, _ = self.core(self.embedding(tokens))
        return self.head(out[:, -1])


class Encoder(nn.Module):
    """nn.TransformerEncoder over tokens, with a causal mask, and positions that are a buffer."""

    def __init__(self, classes: int = 5, norm_first: bool = False):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.register_buffer("positions", torch.sin(torch.arange(6 * 8).reshape(6, 8) / 3.0))
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=norm_first)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=False)
        self.head = nn.Linear(8, classes)

    def forward(self, tokens: Any) -> Any:
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.layers(x, mask=mask, is_causal=True).mean(dim=1))


class ViT(nn.Module):
    """A tiny vision transformer, its attention written out by reshape, permute and scaled_dot_product_attention."""

    def __init__(self, classes: int = 5, d: int = 12, heads: int = 3):
        super().__init__()
        self.heads = heads
        self.patches = nn.Conv2d(3, d, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, d) / 3)
        self.positions = nn.Parameter(torch.randn(1, 5, d) / 3)
        self.blocks = nn.ModuleList()
        for _ in range(2):
            mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(approximate="tanh"), nn.Linear(2 * d, d))
            parts = {"n1": nn.LayerNorm(d), "qkv": nn.Linear(d, 3 * d), "out": nn.Linear(d, d), "n2": nn.LayerNorm(d)}
            self.blocks.append(nn.ModuleDict(parts | {"mlp": mlp}))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, classes)

    def forward(self, x: Any) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        for block in self.blocks:
            b, t, d = x.shape
            qkv = block["qkv"](block["n1"](x)).reshape(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(*qkv.unbind(0))
            x = x + block["out"](y.transpose(1, 2).reshape(b, t, d))
            x = x + block["mlp"](block["n2"](x))
        return self.head(self.norm(x)[:, 0])


def mlp(classes: int = 5) -> nn.Module:
    return nn.Sequential(
        nn.Linear(9, 16),
        nn.LayerNorm(16),
        nn.ReLU(),
        nn.Linear(16, 16),
        nn.LayerNorm(16),
        nn.Tanh(),
        nn.Linear(16, classes),
    )


class UNet(nn.Module):
    """Down, up by nearest neighbours and by a transposed convolution, with what was before; then a mean."""

    def __init__(self, classes: int = 5):
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1)
        self.down = nn.Conv2d(6, 8, 3, padding=1)
        self.deep = nn.Conv2d(8, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 6, 3, 2, 1, output_padding=1)
        self.last = nn.Conv2d(14 + 6, classes, 1)

    def forward(self, x: Any) -> Any:
        a = F.relu(self.first(x))
        b = F.leaky_relu(self.down(F.max_pool2d(a, 2)), 0.1)
        c = F.elu(self.deep(b))
        up = torch.cat([F.interpolate(c, scale_factor=2, mode="nearest"), self.up(c), a], dim=1)
        return self.last(up).mean(dim=(2, 3))


class Bag(nn.Module):
    def __init__(self, classes: int = 5):
        super().__init__()
        self.bag = nn.EmbeddingBag(11, 6, mode="mean")
        self.head = nn.Linear(6, classes)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.bag(tokens))


def dropout(classes: int = 5) -> nn.Module:
    return nn.Sequential(
        nn.Linear(9, 32), nn.ReLU(), nn.Dropout(0.4), nn.Linear(32, 8), nn.Dropout(0.1), nn.Linear(8, classes)
    )


def batch_norm(classes: int = 5) -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(3, 6, 5, 2, 2, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        nn.Flatten(),
        nn.Linear(6 * 4, 8),
        nn.BatchNorm1d(8),
        nn.Softplus(),
        nn.Linear(8, classes),
    )
    for layer in model:
        if hasattr(layer, "running_mean"):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
    return model.eval()


def images(n: int, side: int = 8) -> Any:
    return torch.randn(n, 3, side, side)


def tokens(n: int, length: int = 6) -> Any:
    return torch.randint(0, 11, (n, length))


def table(n: int) -> Any:
    return torch.randn(n, 9)


Batches = Callable[[int], Any]
MODELS: dict[str, tuple[Callable[[], nn.Module], Batches]] = {
    "resnet18": (ResNet18, functools.partial(images, side=16)),
    "vgg": (vgg, functools.partial(images, side=16)),
    "mobile": (mobile, functools.partial(images, side=16)),
    "lstm": (lambda: Recurrent(nn.LSTM), tokens),
    "gru": (lambda: Recurrent(nn.GRU, bidirectional=True), tokens),
    "transformer": (Encoder, tokens),
    "vit": (ViT, images),
    "mlp": (mlp, table),
    "unet": (UNet, images),
    "bag": (Bag, tokens),
    "dropout": (dropout, table),
    "batchnorm": (batch_norm, images),
}


def make(name: str) -> tuple[nn.Module, Batches]:
    """The model of this name, with weights and batches that are always the same."""
    torch.manual_seed(0)
    model, batches = MODELS[name]
    return model(), batches


# ---- files, for tests and docs where PyTorch is not installed


def digits() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10)
    )


class Words(nn.Module):
    """An LSTM, a GRU and attention, over an embedding whose weights are those of the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 4, padding_idx=0)
        self.lstm, self.gru = nn.LSTM(4, 4, batch_first=True), nn.GRU(4, 2, bidirectional=True, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 11)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Any) -> Any:
        x, _ = self.lstm(self.embedding(tokens))
        y, _ = self.gru(x)
        y = y + F.scaled_dot_product_attention(x, y, y, is_causal=True)
        return self.head(F.gelu(self.norm(y))).transpose(1, 2)


class Odd(nn.Module):
    """Dropout, BatchNorm in evaluation, depthwise and transposed convolutions, a frozen parameter, a sum in place."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(4, 4, 3, 2, 1, groups=4, bias=False)
        self.norm = nn.BatchNorm2d(4).eval()
        self.up = nn.ConvTranspose2d(4, 4, 2, 2)
        self.drop = nn.Dropout(0.5)
        self.scale = nn.Parameter(torch.tensor(2.0), requires_grad=False)

    def forward(self, x: Any) -> Any:
        y = F.interpolate(F.silu(self.norm(self.depthwise(x))), scale_factor=2)
        y += self.up(F.avg_pool2d(x, 2))
        return self.drop((self.scale * y).mean(dim=(1, 2))).sum(dim=1)


FILES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "digits": (digits, lambda: torch.rand(5, 1, 8, 8)),
    "words": (Words, lambda: tokens(5, 7)),
    "odd": (Odd, lambda: torch.randn(5, 4, 6, 6)),
}


def write(folder: Path) -> None:
    """Each module as torch.export.save writes it, and what PyTorch answers, in evaluation, with its gradients."""
    for name, (module, batch) in FILES.items():
        torch.manual_seed(0)
        net, x = module(), batch()
        saved = io.BytesIO()
        shapes = ({0: torch.export.Dim("batch")},)
        torch.export.save(torch.export.export(net, (x,), dynamic_shapes=shapes), saved)
        (folder / f"{name}.pt2").write_bytes(shortened(saved))
        answer = net.eval()(x)
        (answer**2).sum().backward()
        found = {f"gradient {key}": value.grad for key, value in net.named_parameters() if value.grad is not None}
        arrays = {"x": x, "answer": answer.detach()} | found
        np.savez_compressed(folder / f"{name}.npz", **{key: value.numpy() for key, value in arrays.items()})


def shortened(saved: io.BytesIO) -> bytes:
    """The same archive without sample inputs, paths of this machine, and spaces and what nobody reads in its JSON."""
    out = io.BytesIO()
    with zipfile.ZipFile(saved) as given, zipfile.ZipFile(out, "w") as kept:
        for info in given.infolist():
            content = given.read(info)
            if info.filename.endswith(".json"):
                content = json.dumps(json.loads(content, object_hook=_shortened), separators=(",", ":")).encode()
            if "sample_inputs" not in info.filename:
                kept.writestr(zipfile.ZipInfo(info.filename), content)
    return out.getvalue()


def _shortened(table: dict[str, Any]) -> dict[str, Any]:
    if "stack_trace" in table:
        table["stack_trace"] = 'File "torch_models.py", line 1, in forward'
    if "tensor_values" in table:
        asked = str(table["inputs"]) + str(table["outputs"])
        table["tensor_values"] = {key: form for key, form in table["tensor_values"].items() if f"'{key}'" in asked}
    unread = ("torch_fn", "device", "range_constraints", "module_call_graph", "kind", "is_hop_single_tensor_return")
    return {key: value for key, value in table.items() if key not in unread}


if __name__ == "__main__":
    write(Path(__file__).parent / "pt2")
