import re
from html.parser import HTMLParser

import numpy as np
import pytest

from autoscaler.simulator.reporting.comparison import Comparison
from autoscaler.simulator.reporting.report import render, save_report
from autoscaler.sizing.service_estimator import ServicePrediction
from policy.batching_policy import BatchingPolicy
from policy.errors import InvalidInputError
from tests.support.autoscaling.simulated_runs import comparison, run

pytestmark = pytest.mark.slow

PAGE = ("a <test> & more", "sojourn simulate --report out.html")
VOID = {"meta", "br", "hr", "img", "link", "input"}


@pytest.fixture(scope="module")
def whole():
    """Return a page with all of its parts."""
    return render(comparison(forecast=True), *PAGE)


class Page(HTMLParser):
    """Check what a browser would have to repair: tags that do not match, repeated attributes."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.references, self.tags = [], [], [], []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.attributes(attrs)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes(attrs)

    def attributes(self, attrs):
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), names
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "action", "data", "poster", "srcset"):
                self.references.append(value)

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text += data


def row_of(text, label):
    (row,) = re.findall(rf"<tr[^>]*>\s*<td>{label}</td>.*?</tr>", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", row)).split()


def test_the_page_is_well_formed(whole):
    page = Page(whole)
    assert page.open == []
    assert len(set(page.ids)) == len(page.ids)
    assert {"html", "head", "title", "body", "main", "table", "svg"} <= set(page.tags)


def test_the_page_fetches_nothing(whole):
    page = Page(whole)
    assert not {"script", "link", "iframe", "img", "object", "base"} & set(page.tags)
    assert all(reference.startswith("#") for reference in page.references)
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", whole))
    assert "://" not in whole
    assert "@import" not in whole


def test_the_table_has_the_numbers_of_each_autoscaler(whole):
    text = whole
    # 4.5 replicas for 300 s at 10 W each, and five scalings in these 300 s.
    expected = "Sojourn kept 99.6% 100% 0.375 1.29× 13.5 kJ 51.0 0 60.0"
    assert row_of(text, "Sojourn") == expected.split()
    ray = row_of(text, "Ray&#39;s default")
    assert ray[2:8] == ["missed", "75.0%", "0%", "0.208", "0.71×", "7.50"]
    assert ray[-2] == "1,500"
    assert row_of(text, "oracle")[1:5] == ["kept", "100%", "100%", "0.292"]


def headings(text):
    return re.findall(r"<h2>(.*?)</h2>", text)


def test_parts_without_data_are_left_out(whole):
    assert "Sojourn sized for" in whole
    less = render(comparison(energy=False), *PAGE)
    assert "energy</th>" not in less
    assert "sized for</text>" not in less
    assert "nan" not in Page(less).text.lower()


def test_a_fixed_fleet_is_shown_beside_its_prediction_without_an_oracle():
    alone = Comparison((run("fixed"),))
    predicted = ServicePrediction(
        1,
        0.9987,
        51.25,
        BatchingPolicy.from_control_limit(1, 1),
        41.5,
        "device",
        lambda percentile: 51.25 * percentile / 99,
        lambda t_ms: np.clip(t_ms / 100, 0, 1),
    )
    text = render(alone, *PAGE, predicted)
    assert "oracle" not in Page(text).text
    assert "Predicted and simulated" in headings(text)
    assert row_of(text, "in time") == ["in", "time", "99.870%", "99.900%"]
    assert row_of(text, "p99 ms") == ["p99", "ms", "51.25", "50.99"]
    assert row_of(text, "mean power W") == ["mean", "power", "W", "41.5", "45"]
    assert "predicted (dashed)" in text


def test_a_file_that_cannot_be_written_is_reported(tmp_path):
    with pytest.raises(InvalidInputError, match="no-such-folder"):
        save_report(tmp_path / "no-such-folder" / "out.html", comparison(), *PAGE)
    save_report(tmp_path / "out.html", comparison(), *PAGE)
    assert (tmp_path / "out.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
