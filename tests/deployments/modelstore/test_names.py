from pathlib import PurePosixPath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deployments.modelstore.errors import UnknownModelError
from deployments.modelstore.names import MAX_FILES, ModelName, parse_sums
from policy.errors import InvalidInputError

NAME = ModelName("pytorch", "resnet50", "1")
DIGEST = "0123456789abcdef" * 4


def test_the_default_framework_and_version():
    assert ModelName.parse("resnet50").path == "pytorch/resnet50/1"
    assert ModelName.parse("onnx/bert-base@v1.0").path == "onnx/bert-base/v1.0"


#: Mostly what names are made of.
CHARACTERS = st.sampled_from([*8 * "a1", *"./@../@-_%\\\0 ~ä\n"])


@given(st.lists(CHARACTERS, max_size=8).map("".join))
@example("x" * 129)
@example("a/b@1\n")
def test_whatever_is_accepted_stays_below_the_root(text):
    try:
        name = ModelName.parse(text)
    except InvalidInputError:
        return
    assert ModelName.parse(str(name)) == name
    parts = PurePosixPath(name.path).parts
    assert len(parts) == 3
    assert not {"..", ".", "/"} & set(parts)
    assert name.path.isascii()
    assert max(map(len, parts)) <= 128
    assert not any(part.startswith((".", "-")) or set(part) & set("% \0\n\\") for part in parts)


def test_parse_sums_keeps_the_weights():
    text = f"{DIGEST}  a.safetensors\n{DIGEST} *b.safetensors\n{'f' * 64}  tokenizer.json\n"
    assert parse_sums(NAME, text) == {"a.safetensors": DIGEST, "b.safetensors": DIGEST}


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"{DIGEST}  tokenizer.json",
        f"{DIGEST}  ../a.safetensors",
        f"{DIGEST}  d/a.safetensors",
        f"{DIGEST[:-1]}  a.safetensors",
        f"{DIGEST.upper()}  a.safetensors",
        f"{DIGEST}  a.safetensors\n{DIGEST}  a.safetensors",
        "\n".join(f"{DIGEST}  {index}.safetensors" for index in range(MAX_FILES + 1)),
    ],
)
def test_a_wrong_list_is_refused(text):
    with pytest.raises(UnknownModelError, match="SHA256SUMS"):
        parse_sums(NAME, text)
