import pytest
from pydantic import Field

from deployments.config.validation import StrictModel, validate
from policy.errors import InvalidInputError


class Node(StrictModel):
    children: "list[Node]" = Field(default_factory=list)
    size: int = 1


def test_an_unknown_key_of_a_recursive_part_is_named():
    with pytest.raises(InvalidInputError, match=r"^children\.0\.siz: unknown key"):
        validate(Node, {"children": [{"siz": 2}]})
