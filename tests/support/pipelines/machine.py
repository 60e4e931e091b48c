"""A pipeline in virtual time: the real core, and stages that take stated times."""

from deployments.pipelines.core.graph import compile_steps
from deployments.pipelines.core.items import BatchFailure
from deployments.pipelines.core.pipeline_core import PipelineCore
from deployments.pipelines.core.stage_core import StageCore
from deployments.pipelines.planning.simulation import VirtualPipeline


class Machine(VirtualPipeline):
    """Runs the batches of a pipeline core in virtual time.

    Parameters
    ----------
    steps : sequence of steps
        The code of each stage is a function of one item.
    latency_ms : dict
        By the name of the stage: of each batch, or a list by batch size.
    max_pending : int
    known : bool
        Whether the stages know their latency; otherwise they measure it.

    Attributes
    ----------
    ended : dict
        By the number of the request: when it ended, and the request.
    """

    def __init__(self, steps, latency_ms, max_pending=10**9, known=True):
        graph = compile_steps(steps)
        self.stages = graph.stages
        self.latency_ms = {
            stage.name: [ms] * (stage.batch_size or 1) if isinstance(ms, int | float) else ms
            for stage in graph.stages
            for ms in [latency_ms[stage.name]]
        }
        cores = [
            StageCore(
                stage.name,
                stage.first_policy(),
                stage.workers,
                self.latency_ms[stage.name] if known else None,
            )
            for stage in graph.stages
        ]
        super().__init__(PipelineCore(graph, cores, max_pending))
        self.ended = {}

    def batch_ms(self, number, batch):
        return self.latency_ms[self.stages[number].name][len(batch.items) - 1]

    def outcome(self, number, batch):
        try:
            return [self.stages[number].code(value) for value in batch.values]
        except Exception as error:
            return BatchFailure(error)

    def flow_ended(self, flow):
        assert flow.id not in self.ended
        self.ended[flow.id] = (self.now_s, flow)
