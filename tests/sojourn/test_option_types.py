import click
import pytest

from policy.errors import InvalidInputError
from sojourn import option_types


def test_an_sla_is_given_in_one_word_or_in_two_options():
    sla = option_types.sla.convert("p95=50ms", None, None)
    assert option_types.chosen_sla(sla, None, None) == sla
    assert option_types.chosen_sla(None, 50.0, 95.0) == sla
    assert option_types.chosen_sla(None, 50.0, None).percentile == 99
    assert option_types.chosen_sla(None, None, None) is None
    for wrong, message in (
        ((sla, 50.0, None), "--sla: omit it, or --response-time-ms and --percentile"),
        ((None, None, 95.0), "--percentile: needs --response-time-ms"),
        ((None, None, None), "give the SLA: --sla 50ms@95, or --response-time-ms 50"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            option_types.required(option_types.chosen_sla(*wrong))


@pytest.mark.parametrize(
    ("name", "taken", "refused"),
    [
        ("above_0", "1e-6", "0 -1 nan inf x"),
        ("from_0", "0", "-1 nan inf -inf"),
        ("percentile", "99.9", "0 100 0.99 1 nan"),
        ("arrival_rate", "1e-9", "0 1e-300 1e10 nan inf"),
        ("scale", "1000000", "0 1e12 nan"),
        ("sla", None, "100@99 1.2.3ms@99 100ms@0.99 0ms@99"),
    ],
)
def test_what_is_out_of_range_is_refused(name, taken, refused):
    kind = getattr(option_types, name)
    if taken is not None:
        assert kind.convert(taken, None, None) == float(taken)
    for text in refused.split():
        with pytest.raises(click.BadParameter):
            kind.convert(text, None, None)
