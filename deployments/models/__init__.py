"""The interface of models, and the models that come with Sojourn.

A model of your own subclasses `Model`. `RowsError` and the `RequestError` classes that it may raise
are in `deployments.errors`. Models whose time depends on the size of their rows can use
`deployments.models.buckets`.
"""

from deployments.models.base import Model, TensorSpec
from deployments.models.loading import MODELS, load_model

__all__ = ["MODELS", "Model", "TensorSpec", "load_model"]
