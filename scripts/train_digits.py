#!/usr/bin/env python
"""Train the digits model and write the weights that ship with Sojourn.

Training is seeded and uses one thread and torch's deterministic algorithms, so the same machine
writes the same bytes. The held-out images only measure the accuracy at the end.

    .venv/bin/python scripts/train_digits.py [--out FILE]
"""

import argparse
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from deployments.models.digits import PIXEL_MAX, WEIGHTS, Digits, make_network
from loadtests import digits

SEED = 20_240_601
EPOCHS = 40
BATCH_SIZE = 64
PEAK_LEARNING_RATE = 4e-3
REQUIRED_ACCURACY = 0.97


def shift(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift a batch by up to one pixel in each direction, as handwriting is not centered."""
    padded = nn.functional.pad(images, (1, 1, 1, 1))
    down, right = torch.randint(0, 3, (2,), generator=generator).tolist()
    return padded[:, :, down : down + 8, right : right + 8]


def train() -> nn.Sequential:
    """Train the network from scratch, in about half a minute on one core."""
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(SEED)

    pixels, digit = digits.train()
    images, labels = torch.from_numpy(pixels).unsqueeze(1) / PIXEL_MAX, torch.from_numpy(digit)
    network = make_network()
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=PEAK_LEARNING_RATE,
        epochs=EPOCHS,
        steps_per_epoch=-(-len(labels) // BATCH_SIZE),
    )
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(labels), generator=generator).split(BATCH_SIZE):
            logits = network(shift(images[rows], generator))
            loss = nn.functional.cross_entropy(logits, labels[rows], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return network


def main() -> int:
    """Train, save, and test the saved weights."""
    parser = argparse.ArgumentParser(description="Train the digits model.")
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    out: Path = parser.parse_args().out

    started = time.perf_counter()
    weights = train().state_dict()
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, out)

    model = Digits(weights=str(out))
    model.load("cpu")
    images, labels = digits.held_out()
    right = int((model.forward({"image": images})["label"] == labels).sum())
    print(
        f"{right} of {len(labels)} held-out digits right ({right / len(labels):.2%}), "
        f"{out.stat().st_size} bytes, {time.perf_counter() - started:.1f} s"
    )
    return 0 if right >= REQUIRED_ACCURACY * len(labels) else 1


if __name__ == "__main__":
    sys.exit(main())
