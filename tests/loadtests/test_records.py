import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadtests.records import Records


def made(n):
    random = np.random.default_rng(n)
    records = Records.begin(np.sort(random.uniform(0, 10, n)))
    records.sent_s[:] = records.scheduled_s + random.uniform(size=n)
    records.outcome[:] = random.choice([1, 2, 3, 503], n)
    records.connection_wait_s[:] = random.uniform(size=n)
    return records


def same(one: Records, other: Records):
    return all(
        np.array_equal(values, getattr(other, name), equal_nan=values.dtype.kind == "f")
        for name, values in vars(one).items()
    )


def test_records_are_read_as_they_were_written(tmp_path):
    records = made(30)
    records.save(tmp_path / "records.npz")
    assert same(Records.load(tmp_path / "records.npz"), records)


@given(st.integers(0, 40), st.integers(1, 7))
def test_what_was_dealt_out_to_workers_is_put_together_again(n, workers):
    whole = made(n)
    parts = [
        Records(**{name: values[worker::workers] for name, values in vars(whole).items()})
        for worker in range(workers)
    ]
    assert same(Records.interleaved(parts), whole)
