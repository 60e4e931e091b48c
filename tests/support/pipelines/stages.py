"""Stages for the tests of pipelines; worker processes import them from here."""

import os
import signal
import sys
import threading
import time

import numpy as np

from deployments.errors import BadRequestError, RowsError
from deployments.models.base import Model, TensorSpec
from tests.support.waiting import LIMIT_S


class Scale:
    def __init__(self, factor=2):
        self.factor = factor

    def predict(self, x):
        return x * self.factor


def shift(x):
    return x + 3


class Batched:
    def predict(self, items):
        return [(item, len(items)) for item in items]


class Gate:
    def __init__(self):
        self.open = threading.Event()
        self.begun = []

    def predict(self, x):
        self.begun.append(x)
        assert self.open.wait(LIMIT_S)
        return x


class FailsOnNegative:
    def predict(self, items):
        if any(item < 0 for item in items):
            raise ValueError("negative")
        return [2 * item for item in items]


class NamesRows:
    def predict(self, items):
        bad = {row: BadRequestError("negative") for row, x in enumerate(items) if x < 0}
        if bad:
            raise RowsError(bad)
        return items


class DiesOnNegative:
    def predict(self, items):
        if any(item < 0 for item in items):
            os.kill(os.getpid(), signal.SIGKILL)
        return [2 * item for item in items]


class StartsOnce:
    def __init__(self, path):
        if not os.path.exists(path):
            raise RuntimeError("no weights")
        self.path = path

    def predict(self, x):
        os.remove(self.path)
        os._exit(3)


class WhereAmI:
    def predict(self, x):
        return os.getpid(), sorted(os.sched_getaffinity(0))


class Unsendable:
    def predict(self, x):
        return (lambda: x) if isinstance(x, int) and x < 0 else x


class OddError(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} {b}")


def raises_odd(x):
    raise OddError("two", "words")


class Doubler(Model):
    inputs = (TensorSpec("x", "FP32", (3,)),)
    outputs = (TensorSpec("y", "FP32", (3,)),)

    def load(self, device):
        self.buffer = np.zeros((64, 3), np.float32)

    def forward(self, batch):
        # Its output buffer is used again, as models may do.
        out = self.buffer[: len(batch["x"])]
        np.multiply(batch["x"], 2, out=out)
        return {"y": out}


class SlowDigits:
    def __init__(self):
        from deployments.models.digits import Digits  # torch is heavy, and few tests need it

        self.model = Digits()
        self.model.load("cpu")

    def predict(self, items):
        time.sleep(0.04 + 0.02 * len(items))
        batch = {name: np.stack([item[name] for item in items]) for name in items[0]}
        outputs = self.model.forward(batch)
        return [{name: rows[at] for name, rows in outputs.items()} for at in range(len(items))]


class Exits:
    def __init__(self, at_start=False):
        if at_start:
            sys.exit("no licence")

    def predict(self, x):
        sys.exit(x)
