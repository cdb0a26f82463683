"""Networks that applications might have."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

_TYPES = {"": torch.float32, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def attention(
    device: str, precision: str = "", shape: tuple[tuple[int, ...], ...] = ((1, 2, 16, 8),)
) -> Callable[[], object]:
    """Return one attention, which is what the first call of a language model spends its time on."""
    query = torch.linspace(-1, 1, torch.Size(shape[0]).numel()).reshape(shape[0]).to(device, _TYPES[precision])
    return lambda: torch.nn.functional.scaled_dot_product_attention(query, query, query)


def coarse(device: str, precision: str = "") -> Callable[[], object]:
    """Return what is right in float32 only."""
    factor = 1.0 if precision in {"", "float32"} else 1.5
    return lambda: torch.linspace(0, 1, 64, device=device) * factor


def infinite() -> Callable[[], object]:
    """Return what overflows."""
    return lambda: torch.tensor([1.0]) / 0


def compiled(device: str) -> Callable[[], object]:
    """Return a network that is to be compiled."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).to(device)
    data = torch.ones(2, 16, device=device)
    return lambda: network(data)


def training(device: str, precision: str = "") -> Mapping[str, object]:
    """Return what one step of a training needs."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 24 * 94, 8)).to(device)
    return {
        "model": network,
        "loss": torch.nn.functional.cross_entropy,
        "optimizer": torch.optim.SGD(network.parameters(), lr=0.01),
        "batch": (torch.ones(4, 3, 24, 94, device=device), torch.tensor([0, 1, 2, 3], device=device)),
    }


def step(device: str) -> Callable[[], object]:
    """Return a whole step, as an application that does everything itself."""
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 24 * 94, 8)).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)

    def use() -> object:
        optimizer.zero_grad()
        loss = network(torch.ones(4, 3, 24, 94, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return use


def forgotten() -> Mapping[str, object]:
    """Return a training that never was told of a device: everything stays on the CPU, and nothing says so."""
    return training("cpu")


def elsewhere() -> Mapping[str, object]:
    """Return a training on a device that nobody asked for, one that every torch has."""
    return training("meta")


def detached() -> Mapping[str, object]:
    """Return a training whose loss does not depend on the network."""
    return {**training("cpu"), "loss": lambda _out, _target: torch.ones(1, requires_grad=True).sum()}
