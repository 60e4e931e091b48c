"""Read a YAML file that a user wrote; what YAML takes for something else than is meant is an error.

Of a key that is there twice, YAML's readers keep the last without a word. And in YAML 1.1, which
Ray reads as well, 0100 is 64 and 1:40 is 100.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from policy.errors import InvalidInputError

_MERGE = "tag:yaml.org,2002:merge"
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
#: Octal, and sexagesimal.
_MISLEADING = re.compile(r"[-+]?0[0-9_]+|[^.]*:.*")


class _Misleading(yaml.MarkedYAMLError):
    """A key that is there twice, or a number that is not the one it looks like."""


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            name = (key.tag, str(key.value))
            if name in seen and key.tag != _MERGE:
                raise _Misleading(
                    problem=f"{key.value}: this key is here twice", problem_mark=key.start_mark
                )
            seen.add(name)
        return node

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node = super().compose_scalar_node(anchor)
        if node.tag in _NUMBERS and _MISLEADING.fullmatch(node.value):
            raise _Misleading(
                problem=f"YAML reads {node.value} as {self.construct_object(node)}; write that, "
                "or put quotes around it",
                problem_mark=node.start_mark,
            )
        return node


def read_yaml(path: str | Path) -> Any:
    """Return the content of a YAML file.

    Raises
    ------
    InvalidInputError
        The file cannot be read, is not YAML, or says what YAML takes for something else: the
        message has the line.
    """
    try:
        return parse_yaml(Path(path).read_text())
    except OSError as error:
        raise InvalidInputError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise InvalidInputError(f"{path}: not a YAML file, not even text") from None
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error}") from None


def parse_yaml(text: str) -> Any:
    """Return what YAML text says.

    Raises
    ------
    InvalidInputError
        As in `read_yaml`.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark else ""
        if isinstance(error, _Misleading):
            raise InvalidInputError(f"{where}: {error.problem}") from None
        raise InvalidInputError("not YAML" + (f" in {where}" if where else "")) from error
    except ValueError as error:  # a date that there is not
        raise InvalidInputError(f"not YAML: {error}") from error
