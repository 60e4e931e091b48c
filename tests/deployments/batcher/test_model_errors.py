"""What a model's author sees of its exceptions."""

import logging

import pytest

from deployments.batcher.model_errors import ModelErrors


def forward(value: object) -> object:
    """Raise as a model does."""
    if value is None:
        raise KeyError("pixels")
    return 1 / int(str(value))


def record(errors: ModelErrors, value: object) -> None:
    try:
        forward(value)
    except Exception as error:
        errors.record(error, 2)


def test_the_first_of_a_kind_is_shown_with_its_traceback_and_the_rest_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    errors = ModelErrors()
    with caplog.at_level(logging.ERROR):
        for _ in range(300):
            record(errors, 0)
    first, *later = [entry.getMessage() for entry in caplog.records]
    assert first.startswith("the model failed on a request (rows: 2)\nTraceback")
    assert "return 1 / int(str(value))" in first
    assert first.endswith("ZeroDivisionError: division by zero")
    line = forward.__code__.co_firstlineno + 4
    last = f"ZeroDivisionError (test_model_errors.py:{line})"
    assert later == [f"the model failed: {last}, and {count} like it" for count in (9, 99)]
    assert errors.report() == {"requests": 300, "last": last}


def test_the_first_of_a_kind_says_which_request_of_which_model(
    caplog: pytest.LogCaptureFixture,
) -> None:
    errors = ModelErrors()
    errors.model = "digits"
    for _ in range(10):
        errors.record(RuntimeError("lost"), 3, b"9f86-2a")
    first, tenth = [entry.getMessage() for entry in caplog.records]
    assert first.startswith("model 'digits' failed on request 9f86-2a (rows: 3)\n")
    assert tenth == "model 'digits' failed: RuntimeError, and 9 like it"


def test_another_kind_is_shown_as_well(caplog: pytest.LogCaptureFixture) -> None:
    errors = ModelErrors()
    for value in (0, None, "x", 0, None, "x"):
        record(errors, value)
    shown = [entry.getMessage().splitlines()[-1].partition(":")[0] for entry in caplog.records]
    assert shown == ["ZeroDivisionError", "KeyError", "ValueError"]
    assert errors.count == 6


def test_an_exception_that_was_never_raised_has_no_place() -> None:
    errors = ModelErrors()
    errors.record(RuntimeError("lost"), 1)
    assert errors.report() == {"requests": 1, "last": "RuntimeError"}


def test_what_a_client_sent_is_in_the_log_only(caplog: pytest.LogCaptureFixture) -> None:
    """`GET /sojourn/policy`, which anybody could read, showed the text of the last exception."""
    errors = ModelErrors()
    for _ in range(10):
        record(errors, "secret")
    assert "secret" in caplog.records[0].getMessage()
    assert "secret" not in str(errors.report()) + caplog.records[-1].getMessage()
