"""The expected wait of a new request, from the work ahead of it at each stage.

How many items continue to later stages follows from the latest choices of switches and numbers of
elements.
"""

from collections.abc import Sequence
from typing import Any

from deployments.pipelines.core.graph import END, JOIN, Graph
from deployments.pipelines.core.stage_core import StageCore
from deployments.pipelines.core.steps import Each, Stage, Step, Switch

# Weight of the expected values, in observed items.
_STATED = 10.0
# Counts are halved at this number, so that old observations fade.
_MEMORY = 1000.0


class Backlog:
    def __init__(self, graph: Graph, stages: Sequence[StageCore]) -> None:
        self._graph, self._stages = graph, stages
        #: The time of a request that does not wait.
        self.usual_ms = 0.0
        #: Of each switch and `Each`: the items so far, and how many entered each branch.
        self._items: dict[int, float] = {}
        self._entered: dict[int, dict[Any, float]] = {}
        for number, node in enumerate(graph.nodes):
            if isinstance(node.step, Switch | Each):
                shares = node.step.expected_shares
                self._items[number] = _STATED
                self._entered[number] = {key: _STATED * share for key, share in shares.items()}

    def count(self, at: int, key: Any, items: int = 1) -> None:
        """Count an item at node `at`, of which so many items entered a branch."""
        self._items[at] += 1
        self._entered[at][key] += items
        if self._items[at] > _MEMORY:
            self._items[at] /= 2
            self._entered[at] = {key: count / 2 for key, count in self._entered[at].items()}

    def _share(self, at: int, key: Any) -> float:
        """Return how many items enter a branch for each item at node `at`."""
        return self._entered[at][key] / self._items[at] if at in self._items else 1.0

    def items_per_request(self) -> dict[str, float]:
        """Return how many items of a request reach each stage of late."""
        return self._graph.items_per_request(self._share)

    def measured_steps(self) -> dict[Step, dict[Any, float]]:
        """Return the shares of each switch and `Each` by key, in place of its `expected_shares`."""
        return {
            self._graph.nodes[at].step: {key: self._share(at, key) for key in entered}
            for at, entered in self._entered.items()
        }

    def measure(self) -> tuple[float, list[float]]:
        """Return the expected wait of a new request, altogether and at each stage, in ms.

        The former is the maximum over stages in sequence and over parallel branches, and the mean
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
                own_ms = ahead * stage.item_ms / (stage.workers or 1)
                if stage.waiting or stage.in_service:  # some of it ends before a new item comes
                    own_ms -= max(0.0, self.usual_ms - stage.usual_ms - stage.rest_ms)
                stages_ms[node.stage] = own_ms
            else:
                chooses = isinstance(node.step, Switch)
                own_ms = left = 0.0
                for key, entry in node.entries.items():
                    share = self._share(at, key)
                    join = node.next if chooses else JOIN
                    branch_ms, out = self._pass(entry, join, share * ahead, stages_ms)
                    branch_ms *= min(1.0, share)
                    if chooses:
                        own_ms, left = own_ms + branch_ms, left + out
                    else:  # each request is in all branches, so they are not added up
                        requests = ahead * (1 - min(1.0, share)) + out / max(1.0, share)
                        own_ms, left = max(own_ms, branch_ms), max(left, requests)
                ahead = left
            wait_ms = max(wait_ms, own_ms)
            at = node.next
        return wait_ms, ahead
