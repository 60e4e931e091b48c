"""Stages that find the label whose examples are nearest to a text, by all-MiniLM-L6-v2.

They need an extra: ``pip install 'sojourn[sentences]'``. ``configs/sentences-pipeline.yaml`` serves
them; the encoder is the heavy one, and has replicas of its own.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.errors import BadRequestError, RequestError, RowsError, TooLargeError
from policy.errors import InvalidInputError

#: Longer texts are rejected: the tokenizer processes a whole text before it truncates it.
MAX_TEXT_BYTES = 16_384
#: Longer texts are truncated.
MAX_TOKENS = 128


class Tokenize:
    """Splits texts into token ids; light enough for a thread, as the tokenizer frees the lock."""

    def __init__(self) -> None:
        # A thread pool would warn after a fork.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        from tokenizers import Tokenizer

        from deployments.models.sentences import model_directory

        self._tokenizer = Tokenizer.from_file(str(model_directory() / "tokenizer.json"))
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._tokenizer.no_padding()

    def predict(self, items: Sequence[Mapping[str, bytes]]) -> list[NDArray[np.int64]]:
        """Return the token ids of each ``text``.

        Raises
        ------
        RowsError
            Some texts are too long, or not UTF-8.
        """
        errors: dict[int, RequestError] = {}
        texts = []
        for row, item in enumerate(items):
            content = bytes(item["text"])
            if len(content) > MAX_TEXT_BYTES:
                errors[row] = TooLargeError(f"text: must have at most {MAX_TEXT_BYTES} bytes")
                continue
            try:
                texts.append(content.decode())
            except UnicodeDecodeError:
                errors[row] = BadRequestError("text: must be UTF-8")
        if errors:
            raise RowsError(errors)
        return [np.array(found.ids) for found in self._tokenizer.encode_batch_fast(texts)]


class Encode:
    """Embeds token ids: the closer two texts are in meaning, the larger their scalar product.

    Parameters
    ----------
    device : str
        As torch names it.
    threads : int
        CPU threads that torch may use.
    """

    def __init__(self, device: str = "cpu", threads: int = 1) -> None:
        from deployments.models.sentences import load_network
        from deployments.models.torch_options import use_torch

        self._network = load_network(use_torch(device, threads))

    def predict(self, items: Sequence[NDArray[np.int64]]) -> list[NDArray[np.float32]]:
        """Return a unit vector, shape (384,), for each array of token ids."""
        from deployments.models.sentences import embed

        return [*embed(self._network, [ids.tolist() for ids in items])]


class Nearest:
    """Finds the label whose examples are nearest to a text.

    Parameters
    ----------
    labels : mapping of str to list of str
        Examples of each label.

    Raises
    ------
    InvalidInputError
        There is no label, or one without an example.
    """

    def __init__(self, labels: Mapping[str, Sequence[str]]) -> None:
        if not labels or not all(labels.values()):
            raise InvalidInputError("nearest: labels must be given, each with an example")
        tokenize, encode = Tokenize(), Encode()
        self._labels = [*labels]
        self._centers = np.stack(
            [
                np.mean(encode.predict(tokenize.predict(_items(texts))), axis=0)
                for texts in labels.values()
            ]
        )

    def predict(self, embedding: NDArray[np.float32]) -> dict[str, Any]:
        """Return the ``label``, and its ``score``, at most 1."""
        scores = self._centers @ embedding
        best = int(np.argmax(scores))
        return {"label": self._labels[best].encode(), "score": scores[best]}


def _items(texts: Sequence[str]) -> list[dict[str, bytes]]:
    return [{"text": text.encode()} for text in texts]


def example() -> dict[str, bytes]:
    """Return a text in the client's form."""
    return {"text": b"My parcel has not arrived yet."}
