"""The interface of models, and the models that come with Sojourn.

A model of your own subclasses `sojourn.Model`, and may raise `sojourn.RowsError`,
`sojourn.BadRequestError` and `sojourn.RequestError`.
"""

from deployments.models.base import Model, TensorSpec
from deployments.models.loading import MODELS, load_model

__all__ = ["MODELS", "Model", "TensorSpec", "load_model"]
