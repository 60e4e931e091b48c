import re

import pytest

from deployments.config.yaml_file import parse_yaml, read_yaml
from policy.errors import InvalidInputError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "line 3: a: this key is here twice"),
        ("a:\n  - {b: 1, b: 1}", "line 2: b: this key is here twice"),
        ("a: 0100", "line 1: YAML reads 0100 as 64; write that, or put quotes around it"),
        ("a: 1:40", "line 1: YAML reads 1:40 as 100;"),
        ("a: [", "line 1: not YAML"),
        ("a:\n\tb: 1", "line 2: not YAML: a tab; YAML is indented by spaces"),
        ("a: 2020-99-99", "line 1: not YAML: month must be in 1..12"),
        ("a: !!python/object:os.system x", "line 1: not YAML"),
    ],
)
def test_what_is_not_what_it_looks_like_is_told_with_its_line(text, message):
    with pytest.raises(InvalidInputError, match="^" + re.escape(message)):
        parse_yaml(text)


def test_what_is_meant_is_read_as_ever():
    text = "a: 0\nb: &b {x: 0.5, y: '0100'}\nc: {<<: *b, x: 0x10}\nd: {<<: *b, x: 1}\nh: host:80"
    assert parse_yaml(text) == {
        "a": 0,
        "b": {"x": 0.5, "y": "0100"},
        "c": {"x": 16, "y": "0100"},
        "d": {"x": 1, "y": "0100"},
        "h": "host:80",
    }


def test_a_file_is_named(tmp_path):
    path = tmp_path / "a.yaml"
    for content, message in (
        (b"a: 1\na: 1", "2: a: this key is here twice"),
        (b"\xff\xfe", " not a YAML file, not even text"),
    ):
        path.write_bytes(content)
        with pytest.raises(InvalidInputError) as caught:
            read_yaml(path)
        assert str(caught.value) == f"{path}:{message}"
