"""Compare ways to embed a batch of sentences of different lengths.

    python -m benchmarks.live.sentences [--quick] [--json] [--batch-size 32] [--batches 12]
        [--threads 1] [--device cpu]

Batches are drawn at random from the examples of `deployments.models.sentences`, in the mix in which
a queue would deliver them. Each batch is embedded in each way, in random order:

- bucketed: what Sojourn does, the grouping with the least time by measurements made at start-up;
- one padded batch: every text padded to the longest;
- one by one: no batching;
- sorted, groups of 8: sorted by length and cut after every 8 texts, a common rule of thumb;
- sentence-transformers: its `encode`, told to compute the batch at once.

Times run from texts to embeddings. "sentences/s" is by the median batch. "x padded" is the median,
over the batches, of the speed-up over one padded batch. "difference" is the largest difference of
any number in an embedding from that of the text embedded alone. Takes about a minute on a CPU.
"""

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from benchmarks.arguments import json_option, quick_option
from deployments.models.sentences import EXAMPLES, Sentences, model_directory
from sojourn.output import print_json, print_table

Embed = Callable[[list[bytes]], NDArray[Any]]


@dataclass(frozen=True)
class Row:
    """The result of one way to embed the batches."""

    way: str
    sentences_per_s: float
    times_one_padded_batch: float
    largest_difference: float


def ways_to_embed(model: Sentences, device: str) -> dict[str, Embed]:
    """Return the ways by name, each a function from texts to embeddings."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()
    library = SentenceTransformer(str(model_directory()), device=device)

    def bucketed(texts: list[bytes]) -> NDArray[Any]:
        return model.forward({"text": np.array(texts, dtype=object)})["embedding"]

    def padded(texts: list[bytes]) -> NDArray[Any]:
        rows = model.tokenize(texts)
        return model._embed(rows, max(map(len, rows)))

    def one_by_one(texts: list[bytes]) -> NDArray[Any]:
        return np.concatenate([padded([text]) for text in texts])

    def sorted_by_8(texts: list[bytes]) -> NDArray[Any]:
        rows = model.tokenize(texts)
        order = np.argsort([len(row) for row in rows])
        embeddings = np.empty((len(texts), 384), np.float32)
        for group in np.split(order, range(8, len(texts), 8)):
            longest = len(rows[group[-1]])
            embeddings[group] = model._embed([rows[place] for place in group], longest)
        return embeddings

    def encode(texts: list[bytes]) -> NDArray[Any]:
        decoded = [text.decode() for text in texts]
        embeddings: NDArray[Any] = library.encode(
            decoded, batch_size=len(decoded), show_progress_bar=False, convert_to_numpy=True
        )
        return embeddings

    return {
        "bucketed": bucketed,
        "one padded batch": padded,
        "one by one": one_by_one,
        "sorted, groups of 8": sorted_by_8,
        "sentence-transformers": encode,
    }


def compare(model: Sentences, device: str, batch_size: int, batches: int) -> list[Row]:
    """Embed the same batches in each way, in random order, and compare the medians."""
    draw = np.random.default_rng(0)
    ways = ways_to_embed(model, device)
    times_s: dict[str, list[float]] = {way: [] for way in ways}
    differences = dict.fromkeys(ways, 0.0)
    for embed in ways.values():  # warm up
        embed([text.encode() for text in EXAMPLES])
    for _ in range(batches):
        texts = [
            EXAMPLES[place].encode() for place in draw.integers(len(EXAMPLES), size=batch_size)
        ]
        answers = {}
        for way in draw.permutation(list(ways)).tolist():
            entered_s = time.perf_counter()
            answers[way] = ways[way](texts)
            times_s[way].append(time.perf_counter() - entered_s)
        for way, answer in answers.items():
            difference = float(np.abs(answer - answers["one by one"]).max())
            differences[way] = max(differences[way], difference)
    # Ratios are taken per batch: other processes slow all ways of one batch alike.
    padded_s = np.array(times_s["one padded batch"])
    return [
        Row(
            way,
            batch_size / float(np.median(taken_s)),
            float(np.median(padded_s / np.array(taken_s))),
            differences[way],
        )
        for way, taken_s in times_s.items()
    ]


@click.command()
@click.option("--batch-size", type=click.IntRange(min=1), default=32, show_default=True)
@click.option("--batches", type=click.IntRange(min=1), default=12, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@quick_option("A quarter of the batches.")
@json_option
def main(
    batch_size: int, batches: int, threads: int, device: str, quick: bool, as_json: bool
) -> None:
    """Compare ways to embed a batch of sentences of different lengths."""
    model = Sentences(threads)
    model.load(device)
    rows = compare(model, device, batch_size, max(1, batches // 4) if quick else batches)
    time_model = model.batch_time
    if as_json:
        print_json(
            {
                "batch_size": batch_size,
                "ways": [asdict(row) for row in rows],
                "batch_time": asdict(time_model),
            }
        )
        return
    print_table(
        ("way", "sentences/s", "x padded", "difference"),
        [
            (
                row.way,
                f"{row.sentences_per_s:.0f}",
                f"{row.times_one_padded_batch:.2f}",
                f"{row.largest_difference:.0e}",
            )
            for row in rows
        ],
        title=f"Batches of {batch_size}, {device}",
    )
    fixed, per_text, per_token, per_token_of_text, attention = time_model.coefficients_ms
    print(
        f"Time of n texts padded to s tokens, in ms: {fixed:.3g} + {per_text:.3g} n"
        f" + {per_token:.3g} s + {per_token_of_text:.3g} n s + {attention:.3g} n s^2, "
        f"within {time_model.max_relative_error:.0%} of the measurements"
    )


if __name__ == "__main__":
    main()
