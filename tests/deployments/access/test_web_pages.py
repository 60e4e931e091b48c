import pytest

from deployments.access.web_pages import is_foreign


@pytest.mark.parametrize(
    ("fields", "foreign"),
    [
        ({}, False),
        ({"host": "127.0.0.1:8000"}, False),
        ({"host": "[::1]:8000", "origin": "http://[::1]:8000"}, False),
        ({"host": "localhost:1", "origin": "http://127.0.0.1:3000"}, False),
        ({"host": "localhost", "sec-fetch-site": "same-origin"}, False),
        ({"host": "rebound.example:8000"}, True),
        ({"host": "127.0.0.1.example"}, True),
        ({"host": "localhost", "origin": "https://evil.example"}, True),
        ({"host": "localhost", "origin": "null"}, True),
        ({"host": "localhost", "sec-fetch-site": "cross-site"}, True),
        ({"host": "\xff["}, True),
    ],
)
def test_a_page_of_another_site_is_foreign(fields, foreign):
    encoded = {name.encode(): value.encode("latin-1") for name, value in fields.items()}
    assert is_foreign(encoded) == foreign
