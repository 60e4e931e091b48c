"""The models of a deployment as its `args` and its `user_config` have them."""

from collections.abc import Iterable

from deployments.config.replica_args import ModelConfig
from deployments.config.user_config import HostedModelConfig, UserConfig
from deployments.config.validation import unknown_key, validate
from deployments.modelstore.names import STORE_PREFIX, ModelName
from policy.errors import InvalidInputError, SojournError


def declared_models(
    configs: Iterable[ModelConfig], user_config: UserConfig
) -> dict[str, ModelConfig]:
    """Return each model, by its name, with the version and the weights that `user_config` names.

    `InvalidInputError` if it names a model that there is not, or a version that cannot be meant.
    """
    models = {config.name: config for config in configs}
    for name, named in user_config.models.items():
        if name not in models:
            raise InvalidInputError(f"models.{name}: {unknown_key(name, models)}")
        try:
            models[name] = _declared(models[name], named)
        except SojournError as error:
            raise InvalidInputError(f"models.{name}: {error}") from None
    return models


def _declared(config: ModelConfig, named: HostedModelConfig) -> ModelConfig:
    if named.version is None and named.weights is None:
        return config
    if named.weights is not None and not named.weights.startswith(STORE_PREFIX):
        if named.version is None:
            raise InvalidInputError(
                f"weights: {named.weights!r:.100} is a file, so it needs a version, which its "
                "answers carry"
            )
        return _with(config, named.version, named.weights)
    version, weights = named.version, named.weights
    if weights is None:
        if config.weights is None or not config.weights.startswith(STORE_PREFIX):
            raise InvalidInputError(
                f"version: the weights of {config.name!r} are not in a model store, so a version "
                f"needs weights: {STORE_PREFIX}NAME@VERSION"
            )
        name = ModelName.parse(config.weights.removeprefix(STORE_PREFIX))
        weights = f"{STORE_PREFIX}{name.framework}/{name.name}@{version}"
    if version is None:
        version = ModelName.parse(weights.removeprefix(STORE_PREFIX)).version
    return _with(config, version, weights)


def _with(config: ModelConfig, version: str, weights: str) -> ModelConfig:
    return validate(ModelConfig, config.model_dump() | {"version": version, "weights": weights})
