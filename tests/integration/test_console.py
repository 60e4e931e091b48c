"""The console in a headless browser, over real replicas on emulated devices."""

import json
import os
import re
import subprocess
import sys

import pytest

from deployments.access.tokens import hash_token
from tests.support.ports import free_port
from tests.support.processes.browser import CHROMIUM, Page, browsing
from tests.support.processes.services import ROOT, get
from tests.support.waiting import LIMIT_S, wait_for

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)"),
]

TOKEN = "a-secret-of-operations"
ACCESS = {
    "tokens": [{"name": "ops", "hash": hash_token(TOKEN), "scopes": ["operations"]}],
    "anonymous": ["inference"],
}
#: Names that the browser gives to what a user can operate.
CONTROLS = {"button", "slider", "spinbutton", "textbox", "combobox", "link"}


@pytest.fixture(scope="module")
def url():
    port = free_port()
    process = subprocess.Popen(
        [
            *(sys.executable, "tests/support/processes/console_server.py"),
            *(str(port), json.dumps({"access": ACCESS})),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    address = f"http://127.0.0.1:{port}"
    try:
        assert wait_for(lambda: get(f"{address}/v2/health/live").status_code == 200)
        yield f"{address}/sojourn/"
    finally:
        process.terminate()
        assert process.wait(LIMIT_S) in (0, -15)


@pytest.fixture(scope="module")
def page(url, tmp_path_factory):
    """The page of a user who has signed in."""
    with browsing(tmp_path_factory.mktemp("browser")) as made:
        made.resize(1280, 900)
        made.get(url)
        made.until("document.getElementById('sign-in').open")
        # The answer that asked for the token.
        made.problems.clear()
        made.do("Input.insertText", text=TOKEN)
        made.press("Enter")
        made.until("document.getElementById('connection').textContent.startsWith('live from')")
        yield made


def text(page: Page, name):
    """Return the text of the element with an id."""
    return str(page.script(f"document.getElementById('{name}').textContent"))


def test_shows_the_service(page: Page):
    page.until("document.getElementById('verdict').textContent.includes('in time')")
    assert text(page, "verdict").startswith("The SLA is")
    assert text(page, "sla") == "googlenet · 99% of requests within 150 ms"
    # Each has a line of its own.
    for chart, lines in (("response", 1), ("load", 1), ("replicas", 1), ("power", 1)):
        page.until(f"document.querySelectorAll('#chart-{chart} > svg .path').length >= {lines}")
    page.until("document.querySelectorAll('#chart-policy rect').length > 100")
    page.until("document.querySelectorAll('#chart-sizes rect').length > 1")
    assert page.until("document.querySelectorAll('#reasons li').length")
    assert re.search(r"Replica memory\d+ MBruns for \d+ (s|min)$", text(page, "tiles"))
    assert text(page, "refusals-words") == "None in the last minute."
    assert page.script("Object.keys(sessionStorage).length") == 1
    assert page.problems == []


def cell(row, column):
    """Return the expression of a number in the table of the what-if."""
    found = f"document.querySelector('#answers tbody').rows[{row}].cells[{column}]"
    return f"{found}.firstChild.textContent"


#: All numbers in it, as they are at one moment: the load of the present changes.
TABLE = (
    "[...document.querySelector('#answers tbody').rows].map(row => [...row.cells].map("
    "cell => parseFloat((cell.firstChild?.textContent ?? '').replaceAll(',', ''))))"
)


def value(page: Page, row, column):
    """Return a number in the table of the what-if."""
    return float(page.script(cell(row, column)).split()[0].replace(",", ""))


def test_the_what_if_answers_sliders_moved_by_the_keyboard_and_says_what_is_out_of_reach(
    page: Page,
):
    page.script("document.getElementById('what-if').scrollIntoView()")
    page.until("document.querySelector('#answers tbody') && true")
    summary = text(page, "summary")
    page.script("document.getElementById('what-if-arrival_rate_per_s').focus()")
    page.press("End")
    # Ten times the load takes at most ten times the replicas, which are busier.
    table = page.until(f"(table => table[0][2] > 4 * table[0][1] && table)({TABLE})")
    assert table[0][2] <= 10 * table[0][1]
    assert table[3][2] > 4 * table[3][1]
    page.script("document.getElementById('what-if-response_time_ms').focus()")
    page.press("ArrowLeft", 20)
    shorter_ms = float(page.script("document.querySelector('#sliders input[type=number]').value"))
    assert shorter_ms < 150
    assert f"response_time_ms: {shorter_ms:g}\n" in text(page, "yaml")
    page.until(f"parseFloat({cell(1, 2)}) <= {shorter_ms}")
    page.until(f"document.getElementById('summary').textContent !== {json.dumps(summary)}")
    page.script("document.getElementById('reset').click()")
    page.until(f"{cell(0, 2)} === {cell(0, 1)}")
    assert page.problems == []
    page.script(
        "(() => { const exact = document.querySelector('#sliders input[type=number]');"
        "exact.value = 1; exact.dispatchEvent(new Event('change')); })()"
    )
    page.until("document.getElementById('summary').textContent.includes('is out of reach')")
    page.script("document.getElementById('reset').click()")
    page.until("document.getElementById('summary').dataset.tone === ''")


@pytest.mark.parametrize(
    ("value", "text"), [("8.7e-4", "0.0009"), ("8.7e-7", "0"), ("1234.5", "1,230")]
)
def test_numbers_have_three_digits_and_four_decimals(page: Page, value, text):
    number = f"import('./static/format.js').then(({{ number }}) => number({value}))"
    assert page.script(number) == text


@pytest.mark.parametrize(("more", "pieces"), [("", 2), ("gapS: 90", 1), ("step: true", 1)])
def test_a_gap_in_time_is_not_drawn_as_filled(page: Page, more, pieces):
    points = "[[10, 1], [11, 1], [50, 1], [51, null], [52, 1]]"
    path = page.script(
        "import('./static/charts.js').then(({ TimeChart }) => {"
        "const host = document.body.appendChild(document.createElement('div'));"
        "const chart = new TimeChart(host, 'test');"
        f"chart.update({{ nowS: 60, series: [{{ area: true, points: {points}, {more} }}] }});"
        "host.remove();"
        "return host.querySelector('.path').getAttribute('d'); })"
    )
    # The missing value ends a piece in any case.
    assert path.count("M") == pieces + 1


def test_everything_is_reached_by_the_keyboard_and_has_a_name(page: Page):
    page.script("document.activeElement.blur(); scrollTo(0, 0)")
    seen: list[str] = []
    for _ in range(40):
        page.press("Tab")
        seen.append(page.script("document.activeElement.id"))
    assert {"reset", "yaml", "reasons", "what-if-percentile"} <= set(seen)
    nodes = page.do("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "slider"}
    for node in nodes:
        role = node.get("role", {}).get("value")
        if role in CONTROLS and not node.get("ignored"):
            roles.discard(role)
            assert node["name"]["value"], node
    assert not roles
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.do("Emulation.setEmulatedMedia", features=dark)
    assert page.script("getComputedStyle(document.body).backgroundColor") == "rgb(16, 20, 26)"
    page.script("document.querySelector('#chart-load > svg').focus()")
    page.press("ArrowLeft")
    assert page.script("document.querySelectorAll('#chart-load .cursor').length") == 1


def test_nothing_is_wider_than_the_screen(page: Page):
    for width in (360, 760, 1280):
        page.resize(width, 900)
        page.until(f"innerWidth === {width}")
        root = "document.documentElement"
        assert page.script(f"{root}.scrollWidth === {root}.clientWidth")
    assert page.problems == []


def test_the_what_if_of_a_pipeline_sizes_its_stages(tmp_path_factory):
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = ["pipeline", "serve", "configs/digits-pipeline.yaml", f"--port={port}", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "sojourn.cli", *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    )
    try:
        assert wait_for(lambda: get(f"{address}/v2/health/ready").status_code == 200)
        with browsing(tmp_path_factory.mktemp("browser")) as page:
            page.get(f"{address}/sojourn/")
            page.until("document.querySelectorAll('#stages tbody tr').length === 3")
            page.script("document.getElementById('what-if').scrollIntoView()")
            # Without load, the present is what the pipeline carries.
            present = "document.querySelector('#answers thead')?.textContent"
            assert page.until(present).startswith("one replica, ")
            load = "document.querySelectorAll('#sliders input[type=number]')[2]"
            page.script(
                f"(() => {{ const exact = {load}; exact.value = 20000;"
                "exact.dispatchEvent(new Event('change')); })()"
            )
            page.until(
                "document.getElementById('planned-stages').rows[1].cells[1].textContent > ''"
            )
            # However fast this machine is, so much load takes more workers than the present.
            page.until(f"parseFloat({cell(0, 2)}) > parseFloat({cell(0, 1)})")
            # What is to be pasted is what the table says.
            lines = text(page, "yaml").split("# workers of the stages\n")[1].splitlines()
            assert sum(int(line.split()[-1]) for line in lines) == value(page, 0, 2)
            assert page.problems == []
    finally:
        process.terminate()
        assert process.wait(LIMIT_S) in (0, -15)


def test_signing_out_asks_for_the_token_again(page: Page, url):
    page.script("document.getElementById('sign-out').click()")
    page.until("document.getElementById('sign-in').open")
    assert page.script("Object.keys(sessionStorage).length") == 0
    assert get(f"{url}events").status_code == 401
