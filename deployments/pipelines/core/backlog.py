"""The work ahead of a new request at each stage, and its expected wait.

How many items continue to later stages follows from the latest choices of switches and numbers of
elements.
"""

from collections.abc import Sequence
from typing import Any

from deployments.pipelines.core.graph import END, JOIN, Graph
from deployments.pipelines.core.stage_core import StageCore
from deployments.pipelines.core.steps import Each, Ensemble, Stage, Step, Switch

# Weight of the expected values, in observed items.
_STATED = 10.0
# Counts are halved at this number, so that old observations fade.
_MEMORY = 1000.0


class Backlog:
    def __init__(self, graph: Graph, stages: Sequence[StageCore]) -> None:
        self._graph, self._stages = graph, stages
        self._chosen: dict[int, dict[Any, float]] = {}
        # Of an `Each`: items, those of them that had elements, elements.
        self._divided: dict[int, list[float]] = {}
        for number, node in enumerate(graph.nodes):
            step = node.step
            if isinstance(step, Switch):
                shares = step.expected_shares
                self._chosen[number] = {key: _STATED * share for key, share in shares.items()}
            elif isinstance(step, Each):
                self._divided[number] = [_STATED, _STATED, _STATED * step.expected_items]

    def count_chosen(self, at: int, key: Any) -> None:
        counts = self._chosen[at]
        counts[key] += 1
        if counts[key] > _MEMORY:
            self._chosen[at] = {key: count / 2 for key, count in counts.items()}

    def count_divided(self, at: int, elements: int) -> None:
        counts = self._divided[at]
        counts[0] += 1
        counts[1] += elements > 0
        counts[2] += elements
        if counts[0] > _MEMORY:
            self._divided[at] = [count / 2 for count in counts]

    def measured_steps(self) -> dict[Step, Any]:
        """Return the shares of each switch by key, and the mean elements of each `Each`."""
        nodes = self._graph.nodes
        shares = {
            nodes[at].step: {key: count / sum(counts.values()) for key, count in counts.items()}
            for at, counts in self._chosen.items()
        }
        return shares | {nodes[at].step: sums[2] / sums[0] for at, sums in self._divided.items()}

    def measure(self) -> tuple[float, list[float]]:
        """Return the expected wait of a new request, and each stage's work ahead, in ms.

        The wait is the maximum over stages in sequence and over parallel branches, and the mean
        over the branches of a switch.
        """
        stages_ms = [0.0] * len(self._stages)
        wait_ms, _ = self._pass(self._graph.entry, END, 0.0, stages_ms)
        return wait_ms, stages_ms

    def _pass(self, at: int, end: int, ahead: float, stages_ms: list[float]) -> tuple[float, float]:
        """Follow `ahead` items, and the items that they meet, from node `at` to node `end`.

        Return the wait of a new item in ms, and the expected number of items at `end`.
        """
        wait_ms = 0.0
        while at != end:
            node = self._graph.nodes[at]
            if isinstance(node.step, Stage):
                stage = self._stages[node.stage]
                ahead += stage.waiting + stage.in_service
                own_ms = stages_ms[node.stage] = ahead * stage.item_ms / (stage.workers or 1)
            elif isinstance(node.step, Switch):
                counts = self._chosen[at]
                total = sum(counts.values())
                own_ms = left = 0.0
                for key, entry in node.entries.items():
                    share = counts[key] / total
                    branch_ms, out = self._pass(entry, node.next, share * ahead, stages_ms)
                    own_ms += share * branch_ms
                    left += out
                ahead = left
            elif isinstance(node.step, Ensemble):
                # Each request is in all branches, so they are not added up.
                own_ms = most = 0.0
                for entry in node.entries.values():
                    branch_ms, out = self._pass(entry, JOIN, ahead, stages_ms)
                    own_ms, most = max(own_ms, branch_ms), max(most, out)
                ahead = most
            else:
                items, with_elements, elements = self._divided[at]
                inside = ahead * elements / items
                branch_ms, out = self._pass(node.entries[0], JOIN, inside, stages_ms)
                own_ms = branch_ms * with_elements / items
                ahead *= 1 - with_elements / items
                if out:
                    ahead += out * with_elements / elements
            wait_ms = max(wait_ms, own_ms)
            at = node.next
        return wait_ms, ahead
