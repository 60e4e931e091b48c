"""Time batches of sentences of different lengths: split into groups, padded as one, one by one.

    python -m benchmarks.live.sentences [--batch-size 32] [--device cpu] [--json]

Batches are drawn at random from the examples of `deployments.models.sentences`, as a queue would
hand them over. Each batch is embedded in each way, in turns, from texts to embeddings:

- bucketed: what Sojourn does, the groups of least time by the times measured at load;
- one padded batch: every text as long as the longest;
- one by one: no batching;
- sorted, groups of 8: sorted by length and cut after every 8 texts, a usual rule of thumb;
- sentence-transformers: its `encode`, told to compute the batch as one.

Sentences per second are from the median; "x padded" is the median, over the batches, of how many
times faster it is than one padded batch. "Difference" is the largest of any number in an embedding
from that of the text computed alone.
"""

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from deployments.models.sentences import EXAMPLES, Sentences, model_directory
from sojourn.output import json_option, print_json, print_table

Embed = Callable[[list[bytes]], NDArray[Any]]


@dataclass(frozen=True)
class Row:
    """One way to embed the same batches."""

    way: str
    sentences_per_s: float
    times_one_padded_batch: float
    largest_difference: float


def ways_to_embed(model: Sentences, device: str) -> dict[str, Embed]:
    """Name the ways, each a function from texts to embeddings."""
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
    """Embed the same batches in each way, in turns; the medians of the times count."""
    draw = np.random.default_rng(0)
    ways = ways_to_embed(model, device)
    times_s: dict[str, list[float]] = {way: [] for way in ways}
    differences = dict.fromkeys(ways, 0.0)
    for embed in ways.values():  # to warm up
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
    # Of each batch the ratio: what else runs on the machine falls on the ways of a batch alike.
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
@json_option
def main(batch_size: int, batches: int, threads: int, device: str, as_json: bool) -> None:
    """Time batches of sentences of different lengths, split in several ways."""
    model = Sentences(threads)
    model.load(device)
    rows = compare(model, device, batch_size, batches)
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
        f"Time of n texts padded to s tokens, ms: {fixed:.3g} + {per_text:.3g} n"
        f" + {per_token:.3g} s + {per_token_of_text:.3g} n s + {attention:.3g} n s^2, "
        f"within {time_model.max_relative_error:.0%} of what was measured"
    )


if __name__ == "__main__":
    main()
