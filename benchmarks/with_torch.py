"""FedAvg as one writes it in PyTorch: a loop over clients, and the same vectorised with ``torch.func``."""

import argparse
import math
import threading
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from cases import RESNET18, Case, cases
from protocol import Contender, serve
from torch import nn
from torch.func import functional_call, grad, vmap

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.backends.cudnn.allow_tf32 = False  # float32 means float32 here, as it does by default for products

# From [in, out] and [h, w, in, out] to PyTorch's [out, in] and [out, in, h, w], and back.
TO_TORCH = {1: (0,), 2: (1, 0), 4: (3, 2, 0, 1)}
FROM_TORCH = {1: (0,), 2: (1, 0), 4: (2, 3, 1, 0)}


def normed(kernel: int, below: int, width: int, stride: int = 1) -> nn.Sequential:
    """Convolution and group normalisation, padded like "SAME": with stride 2 and even sides, behind the image alone."""
    pads = nn.ZeroPad2d((0, kernel // 2, 0, kernel // 2)) if stride > 1 else nn.Identity()
    conv = nn.Conv2d(below, width, kernel, stride, padding=kernel // 2 if stride == 1 else 0, bias=False)
    return nn.Sequential(pads, conv, nn.GroupNorm(32, width))


class Block(nn.Module):
    def __init__(self, below: int, width: int, stride: int):
        super().__init__()
        self.first = normed(3, below, width, stride)
        self.second = normed(3, width, width)
        self.shortcut = normed(1, below, width, stride) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.second(F.relu(self.first(x))) + self.shortcut(x))


def network(case: Case) -> nn.Module:
    """The case's model with its initial parameters."""
    *hidden, last = case.layers
    layers: list[nn.Module] = []
    if case.model == "resnet":
        widths = [width for width, _ in RESNET18]
        blocks = [Block(below, *block) for below, block in zip([widths[0], *widths], RESNET18, strict=False)]
        layers += [normed(3, case.shape[-1], widths[0]), nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    else:
        for shape in hidden:
            if case.model == "cnn":
                layers += [nn.Conv2d(shape[2], shape[3], shape[0], padding="same"), nn.ReLU(), nn.MaxPool2d(2)]
            else:
                layers += [nn.Linear(*shape), nn.ReLU()]
    if case.model == "cnn":
        layers.append(nn.Flatten())
    layers.append(nn.Linear(math.prod(last[:-1]), last[-1], bias=case.model != "logistic"))
    model = nn.Sequential(*layers)
    with torch.no_grad():
        for parameter, array in zip(model.parameters(), case.initial(), strict=True):
            parameter.copy_(torch.from_numpy(array.transpose(TO_TORCH[array.ndim])).reshape(parameter.shape))
    return model


def finish() -> None:
    """Wait for the device, which works on while Python is ahead of it."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


class Loop(Contender):
    """Clients one after another; autograd and plain SGD in place."""

    def __init__(self, case: Case):
        self.case = case
        x, y = (torch.from_numpy(array).to(DEVICE) for array in case.examples())
        self.x = x.movedim(-1, 1).contiguous() if x.ndim == 4 else x
        self.y = y[:, None].float() if case.model == "logistic" else y
        self.loss = F.binary_cross_entropy_with_logits if case.model == "logistic" else F.cross_entropy
        self.offsets = np.concatenate([[0], np.cumsum(case.sizes)])
        self.rng = np.random.default_rng(3)
        torch.manual_seed(3)
        self.model = network(case).to(DEVICE)

    def cohort(self) -> np.ndarray:
        clients = len(self.case.sizes)
        return np.arange(clients) if self.case.cohort is None else self.rng.choice(clients, self.case.cohort, False)

    def minibatches(self, client: int) -> torch.Tensor:
        """[steps, batch] rows of the client's examples, one minibatch a local step."""
        case, size, steps = self.case, int(self.case.sizes[client]), int(self.case.steps[client])
        if case.batch is None:
            return torch.arange(size, device=DEVICE).expand(steps, size)
        if case.epoch:
            return torch.randperm(size, device=DEVICE)[: steps * case.batch].view(steps, case.batch)
        return torch.randint(size, (steps, case.batch), device=DEVICE)

    def local(self, client: int) -> None:
        """The local steps of one client, from the present model."""
        parameters = list(self.model.parameters())
        own = slice(self.offsets[client], self.offsets[client + 1])
        x, y = self.x[own], self.y[own]
        for rows in self.minibatches(client):
            loss = self.loss(self.model(x[rows]), y[rows])
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for p, g in zip(parameters, gradients, strict=True):
                    p.sub_(g, alpha=self.case.lr)

    def round(self, cohort: np.ndarray) -> None:
        parameters = list(self.model.parameters())
        weights = self.case.weights[cohort] / self.case.weights[cohort].sum()
        with torch.no_grad():
            start = [p.clone() for p in parameters]
            mean = [torch.zeros_like(p) for p in parameters]
        for client, weight in zip(cohort, weights, strict=True):
            with torch.no_grad():
                for p, s in zip(parameters, start, strict=True):
                    p.copy_(s)
            self.local(client)
            with torch.no_grad():
                for m, p in zip(mean, parameters, strict=True):
                    m.add_(p, alpha=weight)
        with torch.no_grad():
            for p, m in zip(parameters, mean, strict=True):
                p.copy_(m)

    def restart(self) -> None:
        self.model.load_state_dict(network(self.case).state_dict())

    def train(self, rounds: int) -> dict[str, float]:
        self.restart()
        steps = 0
        begin = time.perf_counter()
        for _ in range(rounds):
            cohort = self.cohort()
            steps += int(self.case.steps[cohort].sum())
            self.round(cohort)
        finish()
        seconds = time.perf_counter() - begin
        return {"seconds": seconds / rounds, "steps": steps / rounds}

    def losses(self, rounds: int) -> list[float]:
        self.restart()
        start = self.objective()
        self.train(rounds)
        return [start, self.objective()]

    @torch.no_grad()
    def objective(self) -> float:
        parts = zip(self.x.split(500), self.y.split(500), strict=True)
        return sum(float(self.loss(self.model(x), y)) * len(x) for x, y in parts) / len(self.x)

    def parameters(self) -> list[list[float]]:
        arrays = []
        for parameter, like in zip(self.model.parameters(), self.case.initial(), strict=True):
            shape = like.transpose(TO_TORCH[like.ndim]).shape
            arrays.append(parameter.detach().cpu().numpy().reshape(shape).transpose(FROM_TORCH[like.ndim]))
        return [array.ravel().tolist() for array in arrays]


class Vmap(Loop):
    """All clients of the cohort at once: ``vmap`` of ``grad`` over stacked parameters.

    Clients are sorted by their number of steps, so that those which have finished drop out of the stack.
    """

    def round(self, cohort: np.ndarray) -> None:
        case = self.case
        cohort = cohort[np.argsort(-case.steps[cohort], kind="stable")]
        weights = torch.from_numpy(case.weights[cohort] / case.weights[cohort].sum()).float().to(DEVICE)
        drawn = [self.minibatches(client) + int(self.offsets[client]) for client in cohort]
        rows = nn.utils.rnn.pad_sequence(drawn)
        start = dict(self.model.named_parameters())
        stacked = {name: p.detach().expand(len(cohort), *p.shape).clone() for name, p in start.items()}
        gradient = vmap(grad(lambda params, x, y: self.loss(functional_call(self.model, params, (x,)), y)))
        for k in range(len(rows)):
            active = int((case.steps[cohort] > k).sum())
            params = {name: p[:active] for name, p in stacked.items()}
            gradients = gradient(params, self.x[rows[k, :active]], self.y[rows[k, :active]])
            for name, p in params.items():
                p.sub_(gradients[name], alpha=case.lr)
        with torch.no_grad():
            for name, p in start.items():
                p.copy_(torch.tensordot(weights, stacked[name], 1))


class Compiled(Loop):
    """The loop over a network that ``torch.compile`` has made into fused kernels, forward and backward."""

    def __init__(self, case: Case):
        super().__init__(case)
        self.plain, self.model = self.model, torch.compile(self.model)

    def restart(self) -> None:
        self.plain.load_state_dict(network(self.case).state_dict())


class Graph(Loop):
    """The loop with a local step captured in a CUDA graph: one launch for all of its operations."""

    def __init__(self, case: Case):
        super().__init__(case)
        batch = int(case.sizes[0]) if case.batch is None else case.batch
        self.rows = torch.zeros(batch, dtype=torch.int64, device=DEVICE)
        self.graph = captured(self.step)

    def step(self) -> None:
        parameters = list(self.model.parameters())
        gradients = torch.autograd.grad(self.loss(self.model(self.x[self.rows]), self.y[self.rows]), parameters)
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-self.case.lr)

    def local(self, client: int) -> None:
        for rows in self.minibatches(client) + int(self.offsets[client]):
            self.rows.copy_(rows)
            self.graph.replay()


class VmapGraph(Loop):
    """All clients of the cohort at once, each local step of all of them captured in one CUDA graph.

    What an expert would write for one GPU: the rows of a round are drawn by one operation, nothing is allocated in a
    round, and clients that have finished take steps of length zero.
    """

    def __init__(self, case: Case):
        super().__init__(case)
        places = len(case.sizes) if case.cohort is None else case.cohort
        self.batch = int(case.sizes.max()) if case.batch is None else case.batch
        self.start = dict(self.model.named_parameters())
        self.stacked = {name: p.detach().expand(places, *p.shape).clone() for name, p in self.start.items()}
        self.rows = torch.zeros(places, self.batch, dtype=torch.int64, device=DEVICE)
        self.lr = torch.zeros(places, device=DEVICE)
        self.sizes, self.first, self.steps = (
            torch.from_numpy(np.asarray(array)).to(DEVICE) for array in (case.sizes, self.offsets[:-1], case.steps)
        )
        self.gradient = vmap(grad(lambda params, x, y: self.loss(functional_call(self.model, params, (x,)), y)))
        self.graph = captured(self.step)

    @torch.no_grad()
    def step(self) -> None:
        gradients = self.gradient(self.stacked, self.x[self.rows], self.y[self.rows])
        for name, p in self.stacked.items():
            p.sub_(gradients[name] * self.lr.view(-1, *[1] * (p.ndim - 1)))

    def drawn(self, clients: torch.Tensor) -> torch.Tensor:
        """[S, steps, batch] rows for as many steps as the slowest client of the cohort takes."""
        case, sizes = self.case, self.sizes[clients]
        most = int(case.steps[clients.cpu().numpy()].max())
        if case.batch is None:
            rows = torch.arange(self.batch, device=DEVICE).expand(len(clients), most, self.batch)
        elif case.epoch:
            order = torch.rand(len(clients), int(case.sizes.max()), device=DEVICE)
            order[torch.arange(order.shape[1], device=DEVICE) >= sizes[:, None]] = 2
            rows = order.argsort(dim=1)[:, : most * self.batch].view(len(clients), most, self.batch)
            rows = torch.minimum(rows, sizes[:, None, None] - 1)  # of steps that are not taken
        else:
            uniform = torch.rand(len(clients), most, self.batch, device=DEVICE)
            rows = (uniform * sizes[:, None, None]).long()
        return rows + self.first[clients][:, None, None]

    @torch.no_grad()
    def round(self, cohort: np.ndarray) -> None:
        weights = torch.from_numpy(self.case.weights[cohort] / self.case.weights[cohort].sum()).float().to(DEVICE)
        clients = torch.from_numpy(cohort).to(DEVICE)
        for name, p in self.start.items():
            self.stacked[name].copy_(p.expand_as(self.stacked[name]))
        for k, rows in enumerate(self.drawn(clients).unbind(1)):
            self.rows.copy_(rows)
            torch.mul(self.steps[clients] > k, self.case.lr, out=self.lr)
            self.graph.replay()
        for name, p in self.start.items():
            p.copy_(torch.tensordot(weights, self.stacked[name], 1))


def captured(step: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """The operations of a step, recorded once; what it changes is to be set anew before a replay."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


class Products(Loop):
    """The matrix products of the MLP's rounds and nothing else: a floor for any implementation.

    Each thread multiplies for its own clients, which is faster than several threads on one small product.
    """

    def __init__(self, case: Case):
        super().__init__(case)
        self.threads = torch.get_num_threads()
        torch.set_num_threads(1)

    @torch.no_grad()
    def multiply(self, steps: int) -> None:
        batch = self.case.batch
        layers = [
            [torch.randn(sides, device=DEVICE) for sides in (shape, (batch, shape[0]), (batch, shape[1]))]
            for shape in self.case.layers
        ]
        out = [[torch.empty_like(array) for array in layer] for layer in layers]
        for _ in range(steps):
            for (kernel, below, above), (for_kernel, for_below, for_above) in zip(layers, out, strict=True):
                torch.mm(below, kernel, out=for_above)
                torch.mm(below.T, above, out=for_kernel)
                if below is not layers[0][1]:
                    torch.mm(above, kernel.T, out=for_below)

    def round(self, cohort: np.ndarray) -> None:
        share = int(self.case.steps[cohort].sum()) // self.threads
        workers = [threading.Thread(target=self.multiply, args=(share,)) for _ in range(self.threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


CONTENDERS = {
    "loop": Loop,
    "vmap": Vmap,
    "compile": Compiled,
    "graph": Graph,
    "vmap-graph": VmapGraph,
    "products": Products,
}


def arguments(*contenders: str) -> argparse.Namespace:
    """What a process of the benchmark is told; ``case`` as a :class:`Case`."""
    parser = argparse.ArgumentParser()
    if contenders:
        parser.add_argument("contender", choices=contenders)
    parser.add_argument("case", choices=list(cases()))
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    case = cases()[options.case]
    options.case = case.small() if options.small else case
    return options


if __name__ == "__main__":
    options = arguments(*CONTENDERS)
    torch.set_num_threads(options.threads)
    serve(CONTENDERS[options.contender](options.case))
