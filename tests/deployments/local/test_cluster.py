"""The child process of a local run, as far as it works without Ray."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray warns while it is imported
    from deployments.local.cluster import last_error


def test_last_error_finds_the_line_that_names_the_error() -> None:
    message = (
        "The deployment failed to start 3 times in a row.\n\n"
        "ray::ServeReplica:a:Replica.initialize_and_get_metadata() (pid=1, ip=127.0.0.1)\n"
        '  File "/x/replica.py", line 1, in initialize\n'
        "RuntimeError: Traceback (most recent call last):\n"
        '  File "/x/base.py", line 2, in load_model\n'
        "policy.errors.InvalidInputError: model 'a': must be package.module:Class\n"
    )
    assert last_error([message]) == "model 'a': must be package.module:Class"
    assert last_error(["something else"]) == "something else"
    assert last_error([]) == "Ray gave no reason"
