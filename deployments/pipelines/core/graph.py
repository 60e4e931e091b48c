"""The steps of a pipeline, compiled to nodes that an item passes in sequence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deployments.pipelines.core.steps import Each, Ensemble, Stage, Step, Switch
from policy.errors import InvalidInputError

#: In place of a next node: the request is answered; the item joins its fan-out.
END, JOIN = -1, -2


@dataclass(frozen=True)
class Node:
    """A step of the items on their way to the node `next`.

    `entries` has the nodes where its branches begin, by their keys or in their order. `stage` is
    the number of a stage.
    """

    step: Step
    next: int
    entries: Mapping[Any, int] = field(default_factory=dict)
    stage: int = -1


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
    """Compile the steps, or raise `InvalidInputError` if they are no pipeline."""
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
    if isinstance(step, list | tuple):
        for part in reversed(step):
            following = _compile(graph, numbers, part, following)
        return following
    if isinstance(step, Stage):
        node = Node(step, following, stage=numbers[step.name])
    else:
        end = following if isinstance(step, Switch) else JOIN
        branches = (
            step.branches
            if isinstance(step, Switch)
            else dict(enumerate(step.branches if isinstance(step, Ensemble) else [step.branch]))
        )
        entries = {key: _compile(graph, numbers, part, end) for key, part in branches.items()}
        node = Node(step, following, entries)
    graph.nodes.append(node)
    return len(graph.nodes) - 1
