"""User errors print one line and exit with status 2, before any load is sent."""

import socket

import pytest

from sojourn.cli import main


@pytest.fixture
def closed_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening
        yield taken.getsockname()[1]


def refused(capsys, *arguments):
    assert main(["loadtest", *arguments]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    (line,) = error.splitlines()
    return line


def test_no_service_at_the_url(capsys, closed_port):
    url = f"http://127.0.0.1:{closed_port}"
    line = refused(capsys, "--url", url)
    assert url in line
    assert "sojourn serve" in line


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--url", "127.0.0.1:8000"], "http://127.0.0.1:8000"),
        (["--rate", "-5"], "arrival rate"),
        (["--rate", "0"], "above 0"),
        (["--duration-s", "0"], "duration"),
        (["--rate", "5", "--shape", "10s:5"], "one of --rate, --shape and --trace"),
        (["--shape", "10s"], "DURATION:RATE"),
        (["--shape", "10s:5", "--duration-s", "5"], "own durations"),
        (["--speedup", "2"], "--trace"),
        (["--timeout-s", "0"], "timeout"),
        (["--trace", "nowhere.csv"], "nowhere.csv"),
        (["--connections", "0"], "connections"),
    ],
)
def test_wrong_options(capsys, options, complaint):
    assert complaint in refused(capsys, *options)
