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


# ---- operators, a few in each module: of an image z [b, 4, 6, 6], and of s, real numbers [b, 5, 8]

K3, K1 = torch.full((8, 4, 3, 3), 0.3), torch.linspace(-1, 1, 4 * 3 * 3).reshape(4, 1, 3, 3)
Group = dict[str, Callable[[Any, Any], Any]]
GROUPS: dict[str, Group] = {
    "activations": {
        name: (lambda z, s, f=function: f(z))
        for name, function in {
            **{name: getattr(F, name) for name in ("relu", "relu6", "elu", "selu", "celu", "silu", "mish", "gelu")},
            **{name: getattr(F, name) for name in ("hardsigmoid", "hardswish", "hardtanh", "softplus", "logsigmoid")},
            **{name: getattr(F, name) for name in ("leaky_relu", "softsign", "tanhshrink", "hardshrink", "softshrink")},
            **{name: getattr(torch, name) for name in ("sigmoid", "tanh", "exp", "expm1", "sin", "cos", "erf", "atan")},
            **{name: getattr(torch, name) for name in ("square", "abs", "neg", "sign", "floor", "sinh", "round")},
            "log": lambda z: torch.log(z.abs() + 1),
            "sqrt": lambda z: (
                torch.sqrt(z**2 + 1) + torch.rsqrt(z**2 + 1) + torch.log1p(z**2) + torch.reciprocal(z**2 + 1)
            ),
            "gelu by tanh": lambda z: F.gelu(z, approximate="tanh"),
            "clamp": lambda z: torch.clamp(z, -0.5, 0.7) + torch.clamp_min(z, 0.1),
            "prelu": lambda z: F.prelu(z, torch.tensor([0.1, 0.2, 0.3, 0.4])),
            "glu": lambda z: F.glu(z, 1),
            "threshold": lambda z: F.threshold(z, 0.1, 20.0),
            "nan": lambda z: torch.nan_to_num(z / torch.where(z > 0, z, torch.zeros_like(z)), 3.0, 4.0, 5.0).tanh(),
        }.items()
    },
    "arithmetic": {
        "with numbers": lambda z, s: 2 * z - 1 + (3 - z) / 2,
        "alpha": lambda z, s: (
            torch.add(z, z * z, alpha=0.5) - torch.sub(z, z.sin(), alpha=2) + torch.rsub(z, 1, alpha=3)
        ),
        "broadcast": lambda z, s: z * torch.arange(4.0)[:, None, None] + torch.arange(6.0),
        "power": lambda z, s: z**2 + z**3.0 + (z.abs() + 1) ** 0.5 + 2**z + (z.abs() + 1) ** z,
        "division": lambda z, s: (
            torch.div(5 * z, 0.3, rounding_mode="floor") + torch.div(z, 0.3, rounding_mode="trunc")
        ),
        "remainder": lambda z, s: torch.remainder(z, 0.7) + torch.fmod(z, 0.7) + (z.detach() // 0.3),
        "maximum": lambda z, s: torch.maximum(z, z.flip(0)) + torch.minimum(z, z.flip(1)) + torch.atan2(z, z.flip(1)),
        "where": lambda z, s: torch.where((z > 0) & (z <= 1) | (z < -1), z, 0.5) + z.masked_fill(z != z.flip(0), 0.1),
        "compare": lambda z, s: (
            (z.ge(0) ^ z.lt(0.5)).float() + torch.logical_and(z > 0, z < 1).to(z.dtype) + (~(z > 0))
        ),
        "lerp": lambda z, s: (
            torch.lerp(z, z * z, 0.3) + torch.addcmul(z, z, z, value=2) + torch.addcdiv(z, z, z * z + 1)
        ),
        "whole": lambda z, s: (z > 0).long() * 3 // 2 + torch.ones_like(z, dtype=torch.int32),
        "in place": lambda z, s: (z * 1).add_(z).mul_(2).clamp_(-1, 1).relu_() + (z + 0).masked_fill_(z > 1, 0.0),
    },
    "sums": {
        "mean": lambda z, s: z.mean() + z.mean(1, keepdim=True) + z.mean((2, 3), keepdim=True) + s.mean(),
        "mean of images": lambda z, s: F.relu(F.conv2d(z, K3)).mean((2, 3)),
        "sum": lambda z, s: z.sum(-1, keepdim=True) + z.sum((0, 1)) + z.sum(),
        "extremes": lambda z, s: z.amax(1) + z.amin((1,)) + z.max(dim=1).values + z.min(1)[0] + z.max() + z.min(),
        "places": lambda z, s: z.argmax(1) + z.argmin(1) + s.argmax(),
        "spread": lambda z, s: z.var(1) + z.std(1, unbiased=False) + torch.var_mean(z, 1, correction=0)[1] + s.var(),
        "logsumexp": lambda z, s: torch.logsumexp(z, 1) + z.softmax(1).sum(1) + z.log_softmax(1)[:, 0],
        "norm": lambda z, s: z.norm(dim=1) + torch.linalg.vector_norm(z, 1, dim=1) + F.normalize(z, dim=1).sum(1),
        "similar": lambda z, s: F.cosine_similarity(z, z.flip(1), dim=1),
        "running": lambda z, s: z.cumsum(2) + (0.1 * z + 1).cumprod(1),
        "logic": lambda z, s: (z > 9).any(1).float() + (z > -9).all(1).float() + (z + 3).prod(1),
        "sort": lambda z, s: s.sort(-1).values + s.sort(-1, descending=True)[0] + s.topk(3)[0].sum(-1, keepdim=True),
    },
    "products": {
        "linear": lambda z, s: F.linear(s, torch.full((3, 8), 0.2), torch.arange(3.0)) + F.linear(s, torch.ones(3, 8)),
        "matmul": lambda z, s: s @ s.transpose(1, 2) @ s + torch.bmm(s, s.mT).sum() + s @ torch.full((8, 8), 0.1),
        "vector": lambda z, s: s @ torch.arange(8.0) + torch.ones(5) @ s.mean(2).T.reshape(5, -1).mean(1),
        "addmm": lambda z, s: torch.addmm(torch.ones(5), s[:, 0], torch.ones(8, 5), beta=2, alpha=0.5),
        "baddbmm": lambda z, s: torch.baddbmm(torch.ones(1, 5, 5), s, s.mT),
        "einsum": lambda z, s: torch.einsum("bchw,bcvw->bhv", z, z) + torch.einsum("btd,bsd->bts", s, s)[:, :1, :1],
        "attention": lambda z, s: F.scaled_dot_product_attention(s, s, s, is_causal=True),
        "masked": lambda z, s: F.scaled_dot_product_attention(s, s, s, (torch.arange(5) > 0).expand(5, 5).tril(-1)),
        "biased": lambda z, s: F.scaled_dot_product_attention(s, s, s, torch.ones(5, 5).triu(), scale=0.3),
        "heads": lambda z, s: F.multi_head_attention_forward(
            *(s.transpose(0, 1),) * 3,
            8,
            2,
            torch.full((24, 8), 0.1),
            torch.zeros(24),
            None,
            None,
            False,
            0.0,
            torch.eye(8),
            torch.zeros(8),
        )[0],
    },
    "shapes": {
        "view": lambda z, s: z.view(z.shape[0], -1) + z.reshape(-1, 144) + z.flatten(1) + z.flatten(2).reshape(-1, 144),
        "axes": lambda z, s: z.permute(0, 2, 3, 1) + z.movedim(1, 3) + z.transpose(1, 3).transpose(1, 2) + z.mT.sum(),
        "ones": lambda z, s: z.unsqueeze(1).squeeze(1) + z[:, None].squeeze() + z.unflatten(1, (2, 2)).flatten(1, 2),
        "expand": lambda z, s: z[:, :1].expand(-1, 4, -1, -1) + z[:, :1].repeat(1, 4, 1, 1) + z.expand_as(z),
        "cat": lambda z, s: (
            torch.cat([z, F.relu(F.conv2d(z, K3, padding=1))], 1).sum(1) + torch.stack([z, z], 1)[:, 0, 0]
        ),
        "split": lambda z, s: (
            z.split(2, 1)[1] + z.chunk(2, 1)[0] + torch.stack(z.unbind(1)[:2], 1) + z.split([1, 2, 1], 1)[1]
        ),
        "slice": lambda z, s: z[:, 1:3, ::2, -4:] + z[:, 2:, 1, None, :4] + z.narrow(1, 1, 2)[:, :, ::2, :4],
        "index": lambda z, s: (
            z[:, [2, 0]] + z.index_select(1, torch.tensor([1, 3])) + z[:, torch.tensor([[0, 1]])][:, 0]
        ),
        "gather": lambda z, s: s.gather(1, torch.zeros(s.shape[0], 2, 8, dtype=torch.long)) + s[:, :2],
        "turn": lambda z, s: z.flip((1, 2)) + z.roll(1, 2) + z.tril() + z.triu(1) + z.roll((1, 2), (1, 3)),
        "pad": lambda z, s: (
            F.pad(z, (1, 2, 0, 1)).sum() + F.pad(z, (1, 1, 1, 1), "reflect") + F.pad(z, (-1, 3), value=2.0)[..., :1, :1]
        ),
        "more pads": lambda z, s: F.pad(z, (1, 1, 1, 1), "replicate") + F.pad(z, (1, 1, 1, 1), "circular"),
        "made": lambda z, s: (
            z + torch.arange(6) + torch.zeros(6) + torch.ones(4, 1, 1) + torch.full((6,), 2.0) + torch.eye(6)
        ),
        "made alike": lambda z, s: z * z.new_ones(6) + z.new_zeros(6) + torch.full_like(z, 2) + z.new_full((6,), 3.0),
        "one hot": lambda z, s: F.one_hot(torch.arange(4), 6).float()[:, None] + z,
        "shuffle": lambda z, s: F.pixel_shuffle(z, 2) + z.diagonal(dim1=2, dim2=3).sum(),
        "interleave": lambda z, s: z.repeat_interleave(2, 1).sum(1) + torch.tile(z, (1, 2, 1, 1)).sum(1),
    },
    "convolutions": {
        "strided": lambda z, s: F.conv2d(z, K3, torch.arange(8.0), 2, 1),
        "unequal": lambda z, s: F.conv2d(z, K3, None, (1, 2), (0, 1)),
        "dilated": lambda z, s: F.conv2d(z, K3, None, 1, 2, 2),
        "same": lambda z, s: F.conv2d(z, K3[:, :, :2, :2], padding="same"),
        "large": lambda z, s: F.conv2d(z, torch.ones(3, 4, 6, 6) / 9, padding=2),
        "depthwise": lambda z, s: F.conv2d(z, K1, None, 2, 1, groups=4) + F.conv2d(z, K1, None, 2, 1, 1, 4),
        "multiplied": lambda z, s: F.conv2d(z, torch.linspace(-1, 1, 72).reshape(8, 1, 3, 3), groups=4),
        "grouped": lambda z, s: F.conv2d(z, torch.linspace(-1, 1, 108).reshape(6, 2, 3, 3), groups=2),
        "transposed": lambda z, s: F.conv_transpose2d(z, K3[:4], torch.arange(4.0), 2, 1, 1),
        "transposed, dilated": lambda z, s: F.conv_transpose2d(z, K3[:4], None, (2, 1), 0, 0, 1, 2),
        "transposed, grouped": lambda z, s: F.conv_transpose2d(
            z, torch.linspace(-1, 1, 108).reshape(4, 3, 3, 3), groups=2
        ),
        "sequences": lambda z, s: F.conv1d(s, torch.linspace(-1, 1, 45).reshape(3, 5, 3), torch.ones(3), 2, 1),
        "sequences, same": lambda z, s: F.conv1d(
            s, torch.linspace(-1, 1, 45).reshape(3, 5, 3), padding="same", dilation=2
        ),
        "sequences, transposed": lambda z, s: F.conv_transpose1d(
            s, torch.linspace(-1, 1, 45).reshape(5, 3, 3), None, 2, 1, 1
        ),
    },
    "pooling": {
        "max": lambda z, s: F.max_pool2d(z, 2) + F.max_pool2d(z, 2, ceil_mode=True),
        "max, overlapping": lambda z, s: F.max_pool2d(z, 3, 2, 1) + F.max_pool2d(z, (2, 4), 2, (0, 1)),
        "max, ceiling": lambda z, s: F.max_pool2d(z, 3, 2, ceil_mode=True),
        "max, dilated": lambda z, s: F.max_pool2d(z, 2, 1, dilation=2),
        "max of sequences": lambda z, s: F.max_pool1d(s, 2) + F.max_pool1d(s, 3, 2, 1),
        "mean": lambda z, s: (
            F.avg_pool2d(z, 2) + F.avg_pool2d(z, 3, 2, 1) + F.avg_pool2d(z, 3, 2, 1, count_include_pad=False)
        ),
        "mean, whole": lambda z, s: F.avg_pool2d(z, 6) + F.avg_pool2d(z, 6, divisor_override=7),
        "mean of sequences": lambda z, s: F.avg_pool1d(s, 2),
        "adaptive": lambda z, s: F.adaptive_avg_pool2d(z, 1) + F.adaptive_max_pool2d(z, 1),
        "adaptive, uneven": lambda z, s: F.adaptive_avg_pool2d(z, (4, 5)) + F.adaptive_max_pool2d(z, (4, 5)),
        "adaptive sequences": lambda z, s: F.adaptive_avg_pool1d(s, 3) + F.adaptive_max_pool1d(s, 3),
        "nearest": lambda z, s: F.interpolate(z, scale_factor=2) + F.interpolate(z, size=(12, 12)),
        "nearest, uneven": lambda z, s: F.interpolate(z, size=(4, 9)) + F.interpolate(z, scale_factor=(0.7, 1.5)),
        "nearest of sequences": lambda z, s: F.interpolate(s, scale_factor=2.0) + F.interpolate(s, size=16),
        "linear": lambda z, s: (
            F.interpolate(z, size=(9, 4), mode="bilinear")
            + F.interpolate(z, size=(9, 4), mode="bilinear", align_corners=True)
        ),
        "linear, scaled": lambda z, s: F.interpolate(z, scale_factor=1.7, mode="bilinear"),
    },
    "normalisation": {
        "group": lambda z, s: F.group_norm(z, 2) + F.group_norm(z, 2, torch.arange(4.0), torch.ones(4), 0.1),
        "group of sequences": lambda z, s: F.group_norm(s, 5, torch.arange(5.0)),
        "layer": lambda z, s: F.layer_norm(z, (6, 6)) + F.layer_norm(z, (6,), torch.arange(6.0), torch.ones(6), 0.1),
        "squares": lambda z, s: F.rms_norm(s, (8,), torch.arange(8.0)) + F.rms_norm(s, (8,), eps=0.1),
        "batch": lambda z, s: F.batch_norm(
            z, torch.arange(4.0), torch.ones(4), torch.ones(4), torch.arange(4.0), eps=0.1
        ),
        "batch of tables": lambda z, s: F.batch_norm(s[:, 0], torch.arange(8.0), torch.ones(8)),
        "instance": lambda z, s: F.instance_norm(z) + F.instance_norm(z, weight=torch.arange(4.0), bias=torch.ones(4)),
        "without gradient": lambda z, s: z * z.detach() + _constant(z),
    },
}


def _constant(z: Any) -> Any:
    with torch.no_grad():
        return z.sin().sum(1, keepdim=True)


class Operators(nn.Module):
    """All results of a group, whose inputs go through a parameter, so that gradients do too."""

    def __init__(self, group: str):
        super().__init__()
        self.group = group
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 6))

    def forward(self, x: Any) -> Any:
        z = x * self.scale
        s = z.reshape(-1, 144)[:, :40].reshape(-1, 5, 8)
        return tuple(function(z, s) for function in GROUPS[self.group].values())


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
        results = {f"gradient {key}": value.grad for key, value in net.named_parameters() if value.grad is not None}
        arrays = {"x": x, "answer": answer.detach()} | results
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
        request = str(table["inputs"]) + str(table["outputs"])
        table["tensor_values"] = {key: form for key, form in table["tensor_values"].items() if f"'{key}'" in request}
    unread = ("torch_fn", "device", "range_constraints", "module_call_graph", "kind", "is_hop_single_tensor_return")
    return {key: value for key, value in table.items() if key not in unread}


if __name__ == "__main__":
    write(Path(__file__).parent / "pt2")
