from deployments.observability.request_info import RequestIds


def test_ids_differ_and_fit_into_a_header():
    processes = [RequestIds() for _ in range(50)]
    ids = [process.make() for process in processes for _ in range(50)]
    assert len(set(ids)) == 2500
    assert all(made.isalnum() for made in (i.replace(b"-", b"", 1) for i in ids))
    assert max(map(len, ids)) < 32
