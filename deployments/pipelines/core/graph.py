"""The steps of a pipeline, compiled to nodes that an item passes in sequence."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deployments.pipelines.core.steps import Each, Ensemble, Stage, Step, Switch
from policy.errors import InvalidInputError

#: In place of a next node: the request is answered; the item joins its fan-out.
END, JOIN = -1, -2


@dataclass(frozen=True)
class StageNode:
    """An item waits at a stage."""

    stage: int
    next: int


@dataclass(frozen=True)
class SwitchNode:
    """An item goes to the node of its key; `shares` are expected. All branches lead to `next`."""

    choose: Callable[[Any], Any]
    entries: Mapping[Any, int]
    shares: Mapping[Any, float]
    next: int


@dataclass(frozen=True)
class ForkNode:
    """An item goes to all of `entries`; the joined results go to `next`."""

    entries: tuple[int, ...]
    join: Callable[[list[Any]], Any]
    next: int


@dataclass(frozen=True)
class EachNode:
    """The elements of an item go to `entry`; the joined results go to `next`."""

    entry: int
    join: Callable[[list[Any]], Any]
    max_items: int
    expected_items: int
    next: int


Node = StageNode | SwitchNode | ForkNode | EachNode


@dataclass
class Graph:
    """A compiled pipeline: its stages in the order of the steps, and the node where it begins."""

    nodes: list[Node] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    entry: int = END

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
            if isinstance(node, StageNode):
                after[node.stage] = least(node.next, behind_join)
                return stage_ms[node.stage] + after[node.stage]
            if isinstance(node, SwitchNode):
                return min([least(entry, behind_join) for entry in node.entries.values()])
            behind = least(node.next, behind_join)
            if isinstance(node, ForkNode):
                return max([least(entry, behind) for entry in node.entries])
            least(node.entry, behind)
            return behind  # there may be no elements

        return least(self.entry, 0.0), after


def compile_steps(steps: Sequence[Step]) -> Graph:
    """Compile the steps of a pipeline.

    Raises
    ------
    InvalidInputError
        There is no stage, something is not a step, or two stages have the same name.
    """
    if isinstance(steps, Stage | Ensemble | Switch | Each):
        steps = [steps]
    graph = Graph()
    _list_stages(graph, steps)
    if not graph.stages:
        raise InvalidInputError("pipeline: needs at least one stage")
    numbers: dict[str, int] = {}
    for number, stage in enumerate(graph.stages):
        if numbers.setdefault(stage.name, number) != number:
            raise InvalidInputError(
                f"pipeline: two stages are called {stage.name!r}; give each a unique name"
            )
    graph.entry = _compile(graph, numbers, steps, END)
    return graph


def _list_stages(graph: Graph, step: Any) -> None:
    if isinstance(step, Stage):
        graph.stages.append(step)
    elif isinstance(step, Each):
        _list_stages(graph, step.branch)
    elif isinstance(step, Ensemble | Switch):
        branches = step.branches
        for branch in branches.values() if isinstance(branches, Mapping) else branches:
            _list_stages(graph, branch)
    elif isinstance(step, list | tuple):
        for part in step:
            _list_stages(graph, part)
    else:
        raise InvalidInputError(
            f"pipeline: a step is a Stage, an Ensemble, a Switch or an Each, not {step!r}"
        )


def _compile(graph: Graph, numbers: Mapping[str, int], step: Any, following: int) -> int:
    """Add the nodes of a step, or of a list of steps; return their entry."""
    if isinstance(step, list | tuple):
        for part in reversed(step):
            following = _compile(graph, numbers, part, following)
        return following
    node: Node
    if isinstance(step, Stage):
        node = StageNode(numbers[step.name], following)
    elif isinstance(step, Switch):
        entries = {
            key: _compile(graph, numbers, branch, following)
            for key, branch in step.branches.items()
        }
        node = SwitchNode(step.choose, entries, step.expected_shares, following)
    elif isinstance(step, Ensemble):
        branches = [_compile(graph, numbers, branch, JOIN) for branch in step.branches]
        node = ForkNode(tuple(branches), step.join, following)
    else:
        entry = _compile(graph, numbers, step.branch, JOIN)
        node = EachNode(entry, step.join, step.max_items, step.expected_items, following)
    graph.nodes.append(node)
    return len(graph.nodes) - 1
