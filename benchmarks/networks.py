"""Networks of TrIMS's tables 3 and 4 (Dakkak et al., 2018), with random weights."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, size, stride, size // 2), nn.ReLU()]


def _alexnet_trunk() -> nn.Sequential:
    first = [nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2)]
    second = [*_convolution(64, 192, 5), nn.MaxPool2d(3, 2)]
    third = [*_convolution(192, 384, 3), *_convolution(384, 256, 3), *_convolution(256, 256, 3)]
    return nn.Sequential(*first, *second, *third, nn.MaxPool2d(3, 2))


def _vgg16_trunk() -> nn.Sequential:
    layers: list[nn.Module] = []
    inputs = 3
    for outputs, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += _convolution(inputs, outputs, 3)
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


def _with_three_layers(trunk: Callable[[], nn.Sequential], side: int) -> nn.Sequential:
    """Return a network whose first linear layer fits images of this side."""
    with torch.device("meta"):
        features = trunk()(torch.empty(1, 3, side, side)).numel()
    linear = [nn.Linear(features, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU()]
    return nn.Sequential(*trunk(), nn.Flatten(), *linear, nn.Linear(4096, 1000))


class _Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            *(nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            *(nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)),
        )
        self.shortcut = nn.Sequential()
        if stride > 1 or inputs != 4 * width:
            self.shortcut.append(nn.Conv2d(inputs, 4 * width, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.path(x) + self.shortcut(x))


def _resnet(blocks: tuple[int, ...]) -> nn.Sequential:
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inputs = 64
    for stage, count in enumerate(blocks):
        for block in range(count):
            layers.append(_Bottleneck(inputs, 64 << stage, 1 if block or not stage else 2))
            inputs = 4 * (64 << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


class _Fire(nn.Module):
    def __init__(self, inputs: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeezed, 1)
        self.small = nn.Conv2d(squeezed, expanded, 1)
        self.large = nn.Conv2d(squeezed, expanded, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        squeezed = torch.relu(self.squeeze(x))
        return torch.relu(torch.cat([self.small(squeezed), self.large(squeezed)], 1))


def _squeezenet() -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, 96, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2)]
    inputs = 96
    for number, (squeezed, expanded) in enumerate(
        ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
    ):
        layers.append(_Fire(inputs, squeezed, expanded))
        inputs = 2 * expanded
        if number in (2, 6):
            layers.append(nn.MaxPool2d(3, 2))
    return nn.Sequential(*layers, *_convolution(512, 1000, 1), nn.AdaptiveAvgPool2d(1))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "squeezenet": (_squeezenet, 224),
    "resnet50": (partial(_resnet, (3, 4, 6, 3)), 224),
    "resnet152": (partial(_resnet, (3, 8, 36, 3)), 224),
    "alexnet": (partial(_with_three_layers, _alexnet_trunk, 224), 224),
    "vgg16": (partial(_with_three_layers, _vgg16_trunk, 224), 224),
    "alexnet-s2": (partial(_with_three_layers, _alexnet_trunk, 454), 454),
}
"""By name: a network, and the side of its images in pixels. The least first."""
