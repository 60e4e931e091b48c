from deployments.batcher.model_errors import ModelErrors


def forward(value):
    if value is None:
        raise KeyError("pixels")
    return 1 / int(str(value))


def record(errors: ModelErrors, value):
    try:
        forward(value)
    except Exception as error:
        errors.record(error, 2)


def test_the_first_of_a_kind_is_shown_with_its_traceback_and_the_rest_are_counted(caplog):
    errors = ModelErrors()
    for _ in range(300):
        record(errors, 0)
    first, *later = [entry.getMessage() for entry in caplog.records]
    assert first.startswith("the model failed on a request (rows: 2)\nTraceback")
    assert first.endswith("ZeroDivisionError: division by zero")
    line = forward.__code__.co_firstlineno + 3
    last = f"ZeroDivisionError (test_model_errors.py:{line})"
    assert later == [f"the model failed: {last}, and {count} like it" for count in (9, 99)]
    assert errors.report() == {"requests": 300, "last": last}


def test_each_kind_is_shown(caplog):
    errors = ModelErrors()
    errors.model = "digits"
    for value in (0, None, "x", 0, None, "x"):
        record(errors, value)
    errors.record(RuntimeError("never raised"), 3, b"9f86-2a")
    shown = [entry.getMessage().splitlines() for entry in caplog.records]
    assert [lines[-1].partition(":")[0] for lines in shown] == [
        *("ZeroDivisionError", "KeyError", "ValueError", "RuntimeError")
    ]
    assert shown[-1][0] == "model 'digits' failed on request 9f86-2a (rows: 3)"
    assert errors.report() == {"requests": 7, "last": "RuntimeError"}


def test_what_a_client_sent_is_in_the_log_only(caplog):
    """`GET /sojourn/policy`, which anybody could read, showed the text of the last exception."""
    errors = ModelErrors()
    record(errors, "secret")
    assert "secret" in caplog.text
    assert "secret" not in str(errors.report())
