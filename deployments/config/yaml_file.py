"""Read a YAML file that a user wrote, with the line of each key.

What YAML takes for something else than is meant is an error: its readers keep the last of two equal
keys without a word, and in YAML 1.1, which Ray reads as well, 0100 is 64 and 1:40 is 100.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from deployments.config.validation import ConfigError, Place
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


class YamlFile:
    """A YAML file: its content, and the lines of its keys.

    `InvalidInputError` if it cannot be read, is not YAML, or is misleading.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = path
        try:
            text = Path(path).read_text()
        except OSError as error:
            raise InvalidInputError(f"{path}: {error.strerror}") from error
        except UnicodeDecodeError:
            raise InvalidInputError(f"{path}: not a YAML file, not even text") from None
        self._root, self.content = _parse(text, f"{path}:")

    @contextmanager
    def located(self) -> Iterator[None]:
        """Begin the message of a `ConfigError` with the file and the line of its place."""
        try:
            yield
        except ConfigError as error:
            line = self._line(error.place)
            raise InvalidInputError(f"{self.path}:{line}: {error}") from None

    def _line(self, place: Place) -> int:
        """Return the line of the last key of a place that is in the file."""
        node, line = self._root, 1
        for part in place:
            if isinstance(node, yaml.MappingNode):
                # Merged keys come first, and are overridden by those that follow.
                found = [pair for pair in node.value if pair[0].value == str(part)]
                if not found:
                    break
                key, node = found[-1]
                line = key.start_mark.line + 1
            elif isinstance(node, yaml.SequenceNode) and part in range(len(node.value)):
                node = node.value[int(part)]
                line = node.start_mark.line + 1
            else:
                break
        return line


def read_yaml(path: str | Path) -> Any:
    """Return the content of a YAML file; raise `InvalidInputError` as `YamlFile` does."""
    return YamlFile(path).content


def parse_yaml(text: str) -> Any:
    """Return the content of YAML text; raise `InvalidInputError` as `YamlFile` does."""
    return _parse(text, "line ")[1]


def _parse(text: str, where: str) -> tuple[yaml.Node | None, Any]:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        return node, None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        problem = getattr(error, "problem", None) or "not text"
        if "'\\t'" in problem:
            problem = "a tab; YAML is indented by spaces"
        if not isinstance(error, _Misleading):
            problem = f"not YAML: {problem}"
        raise InvalidInputError(f"{where}{line}: {problem}") from error
    except ValueError as error:  # a date that there is not
        raise InvalidInputError(f"{where}1: not YAML: {error}") from error
    finally:
        loader.dispose()
