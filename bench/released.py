"""The released recipe written plainly: whole model in float32, one full SVD a kind, batches of 64, 10 epochs.

Usage: released.py BASE OUT FIRST LAST. Prints JSON: seconds of each part, and the final loss of each kind's predictor.
"""

import json
import sys
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import AutoModelForCausalLM

KINDS = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), "self_attn")
KINDS |= dict.fromkeys(("gate_proj", "up_proj", "down_proj"), "mlp")
NORM_WEIGHT = 5e-4


def main(base: str, out: str, first: int, last: int) -> None:
    torch.manual_seed(0)
    seconds = {"analyze": 0.0, "train_predictor": 0.0, "expand": 0.0}
    start = time.monotonic()
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    seconds["analyze"] += time.monotonic() - start
    losses, predicted = {}, {}
    for kind, module in KINDS.items():
        start = time.monotonic()
        weights = [getattr(getattr(layer, module), kind).weight.data for layer in model.model.layers]
        u, s, vt = torch.linalg.svd(torch.cat(weights, dim=1), full_matrices=False)
        blocks = vt.split(weights[0].shape[1], dim=1)
        seconds["analyze"] += time.monotonic() - start

        start = time.monotonic()
        inputs = torch.cat([torch.cat((blocks[i - 1], blocks[i + 1]), dim=1) for i in range(1, len(blocks) - 1)])
        dataset = TensorDataset(inputs, torch.cat(blocks[1:-1]))
        network = train(dataset)
        seconds["train_predictor"] += time.monotonic() - start
        losses[kind] = final_loss(network, dataset)

        start = time.monotonic()
        with torch.no_grad():
            predicted[kind] = [
                (u * s) @ network(torch.cat((blocks[i], blocks[i + 1]), dim=1)) for i in range(first, last)
            ]
        seconds["expand"] += time.monotonic() - start

    start = time.monotonic()
    insert(model, predicted, first, last)
    model.to(torch.bfloat16).save_pretrained(out)
    seconds["expand"] += time.monotonic() - start
    print(json.dumps({"seconds": seconds, "losses": losses}))


def train(dataset: TensorDataset) -> nn.Module:
    d_in = dataset.tensors[1].shape[1]
    network = nn.Sequential(nn.Linear(2 * d_in, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, d_in))
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for _ in range(10):
        for x, y in DataLoader(dataset, batch_size=64, shuffle=True):
            optimizer.zero_grad()
            loss(network(x), y).backward()
            optimizer.step()
    return network


def loss(predicted: Tensor, true: Tensor) -> Tensor:
    difference = nn.functional.mse_loss(predicted, true)
    return (1 - NORM_WEIGHT) * difference + NORM_WEIGHT * (predicted.norm() - true.norm()) ** 2


@torch.no_grad()
def final_loss(network: nn.Module, dataset: TensorDataset) -> float:
    batches = DataLoader(dataset, batch_size=64, shuffle=True)
    return torch.stack([loss(network(x), y) for x, y in batches]).mean().item()


def insert(model: Any, predicted: dict[str, list[Tensor]], first: int, last: int) -> None:
    old = model.model.layers
    layers = list(old[: first + 1])
    for number, right in enumerate(range(first + 1, last + 1)):
        layer = type(old[0])(model.config, layer_idx=0)
        layer.load_state_dict(old[0].state_dict())
        for kind, module in KINDS.items():
            getattr(getattr(layer, module), kind).weight.data = predicted[kind][number]
        layers += [layer, old[right]]
    model.model.layers = nn.ModuleList([*layers, *old[last + 1 :]])
    model.config.num_hidden_layers = len(model.model.layers)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
