"""The steps of a pipeline, compiled to nodes that an item passes in sequence."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deployments.pipelines.core.steps import Each, Ensemble, Stage, Step, Switch
from policy.errors import InvalidInputError

#: In place of a next node: the request is answered; the item joins its fan-out.
END, JOIN = -1, -2


@dataclass(frozen=True)
class Node:
    """A step before the node `next`; `entries` are the first nodes of its branches, by key."""

    step: Step
    next: int
    entries: Mapping[Any, int] = field(default_factory=dict)
    stage: int = -1


@dataclass
class Graph:
    """A compiled pipeline; its stages are in the order of the steps."""

    nodes: list[Node] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    entry: int = END

    def items_per_request(
        self, share: Callable[[int, Any], float] | None = None
    ) -> dict[str, float]:
        """Return how many items of a request reach each stage.

        `share` is how many enter a branch, by its key, for each one at a node; by default as
        expected.
        """
        found = dict.fromkeys([stage.name for stage in self.stages], 0.0)

        def follow(at: int, end: int, items: float) -> None:
            while at != end:
                node = self.nodes[at]
                if isinstance(node.step, Stage):
                    found[node.step.name] = items
                else:
                    join = node.next if isinstance(node.step, Switch) else JOIN
                    for key, entry in node.entries.items():
                        part = share(at, key) if share else node.step.expected_shares[key]
                        follow(entry, join, items * part)
                at = node.next

        follow(self.entry, END, 1.0)
        return found

    def rest_ms(self, stage_ms: Sequence[float]) -> tuple[float, list[float]]:
        """Return the least time to the answer, from the entry and after each stage."""
        after = [0.0] * len(self.stages)
        known: dict[int, float] = {}  # the steps after a switch are visited once per branch

        def least(at: int, behind_join: float) -> float:
            if at == END:
                return 0.0
            if at == JOIN:
                return behind_join
            if at not in known:
                known[at] = least_from(at, behind_join)
            return known[at]

        def least_from(at: int, behind_join: float) -> float:
            node = self.nodes[at]
            if isinstance(node.step, Stage):
                after[node.stage] = least(node.next, behind_join)
                return stage_ms[node.stage] + after[node.stage]
            entries = node.entries.values()
            if isinstance(node.step, Switch):
                return min([least(entry, behind_join) for entry in entries])
            behind = least(node.next, behind_join)
            longest = max([least(entry, behind) for entry in entries])
            return longest if isinstance(node.step, Ensemble) else behind  # maybe no elements

        return least(self.entry, 0.0), after


def compile_steps(steps: Sequence[Step]) -> Graph:
    """Compile the steps, or raise `InvalidInputError`."""
    if isinstance(steps, Stage | Ensemble | Switch | Each):
        steps = [steps]
    graph = Graph()
    _list_stages(graph, steps)
    if not graph.stages:
        raise InvalidInputError("pipeline: needs at least one stage")
    names = [stage.name for stage in graph.stages]
    numbers = {name: number for number, name in enumerate(names)}
    if twice := [name for name in names if names.count(name) > 1]:
        raise InvalidInputError(
            f"pipeline: two stages are called {twice[0]!r}; give each a unique name"
        )
    graph.entry = _compile(graph, numbers, steps, END)
    return graph


def _list_stages(graph: Graph, step: Any) -> None:
    if isinstance(step, Stage):
        graph.stages.append(step)
    elif isinstance(step, Ensemble | Switch | Each | list | tuple):
        for part in step if isinstance(step, list | tuple) else step.parts.values():
            _list_stages(graph, part)
    else:
        raise InvalidInputError(
            f"pipeline: a step is a Stage, an Ensemble, a Switch or an Each, not {step!r}"
        )


def _compile(graph: Graph, numbers: Mapping[str, int], step: Any, following: int) -> int:
    if isinstance(step, list | tuple):
        for part in reversed(step):
            following = _compile(graph, numbers, part, following)
        return following
    if isinstance(step, Stage):
        node = Node(step, following, stage=numbers[step.name])
    else:
        end = following if isinstance(step, Switch) else JOIN
        entries = {key: _compile(graph, numbers, part, end) for key, part in step.parts.items()}
        node = Node(step, following, entries)
    graph.nodes.append(node)
    return len(graph.nodes) - 1
