"""Your classifier of texts: clients send strings, and the model tokenizes a whole batch."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from sojourn import Model, TensorSpec


class Classifier(Model):
    """A tiny BERT with random weights; yours comes by ``from_pretrained(FOLDER)``."""

    inputs = (TensorSpec("text", "BYTES"),)
    outputs = (TensorSpec("label", "INT64"), TensorSpec("scores", "FP32", (2,)))

    def load(self, device: str) -> None:
        words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "good": 2, "bad": 3}, "[UNK]"))
        words.pre_tokenizer = pre_tokenizers.Whitespace()
        self._tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]")
        torch.manual_seed(0)
        config = BertConfig(vocab_size=4, hidden_size=24, num_hidden_layers=1)
        self._network = BertForSequenceClassification(config).to(device).eval()

    def forward(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        texts = [str(text, "utf-8", "replace").strip() or "?" for text in batch["text"]]
        options = {"padding": True, "truncation": True, "max_length": 128, "return_tensors": "pt"}
        tokens = self._tokenizer(texts, **options).to(self._network.device)
        with torch.inference_mode():
            scores = self._network(**tokens).logits.softmax(-1).cpu().numpy()
        return {"label": scores.argmax(axis=1), "scores": scores}

    def example(self, batch_size: int) -> dict[str, NDArray[Any]]:
        """Return texts as long as those that you expect: batches are profiled with them."""
        texts = [b"good bad unknown " * (1 + row % 8) for row in range(batch_size)]
        return {"text": np.array(texts, object)}
