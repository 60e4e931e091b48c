import re

import pytest

from autoscaler.simulator.reporting.report import render
from tests.support.autoscaling.simulated_runs import comparison
from tests.support.html_pages import check_whole

pytestmark = pytest.mark.slow

PAGE = ("a <test> & more", "sojourn simulate --report out.html")


def row_of(text, label):
    (row,) = re.findall(rf"<tr[^>]*>\s*<td>{label}</td>.*?</tr>", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", row)).split()


def test_the_page_is_whole_and_has_the_numbers_of_each_autoscaler():
    text = render(comparison(forecast=True), *PAGE)
    assert "svg" in check_whole(text).tags
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))
    assert "Sojourn sized for" in text
    # 4.5 replicas for 300 s at 10 W each, and five scalings in these 300 s.
    expected = "Sojourn kept 99.6% 100% 0.375 1.29× 13.5 kJ 51.0 0 60.0"
    assert row_of(text, "Sojourn") == expected.split()
    ray = row_of(text, "Ray&#39;s default")
    assert ray[2:8] == ["missed", "75.0%", "0%", "0.208", "0.71×", "7.50"]
    assert ray[-2] == "1,500"
    assert row_of(text, "oracle")[1:5] == ["kept", "100%", "100%", "0.292"]
