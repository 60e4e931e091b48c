from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective, Weights
from policy.service_model import BatchingSettings, service_model
from policy.tables.file import TableFile
from policy.tables.solving import solve_table
from policy.try_delays import TryDelays
from tests.support.profiles import GOOGLENET_P4

RATES = (500.0, 1500.0)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    weights = Weights(1.0, 2.0)
    file = tmp_path_factory.mktemp("table") / "table.json"
    TableFile(GOOGLENET_P4, weights, solve_table(GOOGLENET_P4, weights, RATES)).save(file)
    return file


@settings(max_examples=20)
@given(st.integers(1, 32), st.floats(1.0, 4000.0))
def test_a_saved_table_has_the_same_policies_up_to_the_largest_batch(path, largest, rate_per_s):
    read = TableFile.load(str(path))
    assert read.objective == Weights(1.0, 2.0)
    table = read.table_for(GOOGLENET_P4.up_to(largest))
    solved = solve_table(GOOGLENET_P4, read.objective, RATES)
    assert table.lookup(rate_per_s) == solved.lookup(rate_per_s).up_to(largest)
    other = replace(GOOGLENET_P4, latency_ms=1.001 * GOOGLENET_P4.latency_ms)
    assert read.table_for(other) is None


def test_a_service_takes_the_table_of_its_profile_and_sla(path):
    sla, settings_ = ServiceLevelObjective(50.0, 99.0), BatchingSettings(table=TableFile.load(path))
    service = service_model(GOOGLENET_P4, sla, TryDelays(), settings_)
    assert service.objective == Weights(1.0, 2.0)
    assert service.table is service.policies is service.given
    slower = replace(GOOGLENET_P4, latency_ms=2 * GOOGLENET_P4.latency_ms)
    assert service_model(slower, sla, TryDelays(), settings_).given is None
    other = replace(settings_.table, objective=ServiceLevelObjective(9.0, 99.0))
    with pytest.raises(InvalidInputError, match="solved for batching 99% of requests within 9 ms"):
        service_model(GOOGLENET_P4, sla, TryDelays(), BatchingSettings(table=other))


@pytest.mark.parametrize("content", ["", "{}", '{"objective": {"kind": "None"}}'])
def test_another_file_is_refused(tmp_path, content):
    (tmp_path / "other.json").write_text(content)
    with pytest.raises(InvalidInputError, match=r"other\.json: not as `sojourn solve --export`"):
        TableFile.load(str(tmp_path / "other.json"))
    with pytest.raises(InvalidInputError, match="No such file"):
        TableFile.load(str(tmp_path / "none.json"))
