"""The page: complete, safe, readable on a phone and by a screen reader, and opened in a real browser."""

import html.parser
import itertools
import json
import re
import shutil
import tempfile
from pathlib import Path

import pytest
from toys import Accidents, Exponentials, Squares

from nullcline import engine
from nullcline.engine import Claim, Executor, StoreError, make_plan
from nullcline.engine._compute import record
from nullcline.engine._outcome import load
from nullcline.engine._progress import QuietProgress, _Clock
from nullcline.engine._report import _STYLE
from nullcline.engine._reproduce import _keep_share


class Loud(Squares):
    """A study <script>alert("of another mind")</script> & claims that fail.

    Every character is text: <img src="https://example.org/x.png">.
    """

    source = "toy/loud"

    def claims(self, data):
        sentence = "a long sentence that says <b>very much</b> about " + "unbreakable" * 12
        yield Claim(sentence, measured=float("nan"), at_least=0, at_most=1, source="p. 3", note="a & b")
        yield Claim("it is small", measured=1e-12, at_most=1e-10)


class Crooked(Squares):
    """A study that cannot be drawn."""

    source = "toy/crooked"

    def draw(self, data):
        raise KeyError("no such variable")


class Hungry(Squares):
    """A study that needs data of the user."""

    source = "toy/hungry"

    def missing(self):
        return "give the folder of the recordings with --data"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    out = tmp_path_factory.mktemp("results")
    studies = [Squares(), Accidents(), Loud(), Crooked(), Hungry()]
    plans = [make_plan(study) for study in studies] + [make_plan(Squares(), "quick", {"n": (1, 2)})]
    outcomes, waiting = engine.reproduce(plans, out, Executor(), QuietProgress())
    assert not waiting
    return out, {outcome.study + "/" + outcome.preset.partition("+")[0]: outcome for outcome in outcomes}


class Page(html.parser.HTMLParser):
    """Every element with its attributes, in order, and all the text."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def test_outcomes_say_what_happened(results):
    out, outcomes = results
    assert outcomes["toy/hungry/quick"].status == "skipped" and outcomes["toy/hungry/quick"].is_good
    accidents = outcomes["toy/accidents/quick"]
    # Claims of a partial study are not judged as if it were complete.
    assert accidents.status == "partial" and accidents.claims == () and len(accidents.failures) == 2
    assert accidents.has_figure and not accidents.is_good
    assert outcomes["toy/crooked/quick"].status == "broken"
    assert "`draw` raised KeyError" in outcomes["toy/crooked/quick"].message
    assert outcomes["toy/loud/quick"].count("fails") == 1 and not outcomes["toy/loud/quick"].is_good
    assert load(out / "toy/loud/quick/outcome.json").summary == "2 claims: 1 holds, 1 FAILS"
    for kind, magic in (("png", b"\x89PNG"), ("pdf", b"%PDF"), ("nc", b"\x89HDF")):
        name = "data.nc" if kind == "nc" else f"figure.{kind}"
        assert (out / "toy/accidents/quick" / name).read_bytes().startswith(magic)


def test_the_page_is_complete_accessible_and_asks_nobody_for_anything(results):
    out, _ = results
    text = (out / "report.html").read_text()
    page = Page(text)
    assert "2 claims: 1 holds, 1 refuted" in page.text
    for words in (
        "half of them are even",
        "toy, eq. 1",
        "≥ 121",
        "≠ refuted",
        "✗ fails",
        "✓ holds",
        "nan",
        "0 … 1",
    ):
        assert words in page.text, words
    for words in ("ZeroDivisionError: one over nothing", "`value` is not finite", "kind = raises"):
        assert words in page.text, words
    # Failures stand before the studies.
    assert page.text.index("Failures") < page.text.index("Provenance of")
    for words in ("Commit", "Device", "Jax", "Computing time", "give the folder of the recordings"):
        assert words in page.text, words
    # Nothing is fetched, and nothing of a study is markup.
    for _, attributes in page.elements:
        for name in ("src", "href"):
            value = attributes.get(name, "#")
            assert value.startswith(("#", "data:")) or (out / value).is_file(), value
    assert not page.all("script") and "default-src 'none'" in text
    # Structure for a screen reader.
    assert page.all("html")[0]["lang"] == "en" and len(page.all("h1")) == 1 and len(page.all("main")) == 1
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert all(len(image["alt"]) > 20 for image in page.all("img"))
    assert all(cell.get("scope") in ("row", "col") for cell in page.all("th")) and page.all("th")
    assert len(page.all("caption")) == len(page.all("table"))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert all(link["href"][1:] in ids for link in page.all("a") if link["href"].startswith("#"))


def luminance(color):
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_text_color_has_contrast():
    colors = dict(re.findall(r"--(\w+): (#\w{6})", _STYLE))
    assert {"ink", "soft", "good", "bad", "known", "paper"} <= set(colors)
    for name in ("ink", "soft", "good", "bad", "known"):
        # WCAG 2.2, AAA for normal text.
        assert (luminance(colors["paper"]) + 0.05) / (luminance(colors[name]) + 0.05) >= 7, name


@pytest.mark.parametrize("content", ["{}", "[]", "{", '{"study": "a/b", "of a later version": 1}', None])
def test_an_outcome_that_cannot_be_read_stops_nothing(content, tmp_path):
    engine.reproduce([make_plan(Squares())], tmp_path, Executor(), QuietProgress())
    path = tmp_path / "toy/squares/quick/outcome.json"
    whole = path.read_text()
    path.write_text(whole[:100] if content is None else content)
    outcomes, _ = engine.reproduce([make_plan(Exponentials())], tmp_path, Executor(), QuietProgress())
    assert outcomes[0].is_good
    text = (tmp_path / "report.html").read_text()
    assert "outcome.json is no outcome of a study" in text and "toy-exponentials-quick" in text
    assert "`nullcline reproduce toy/squares` with the same options writes it again" in text
    assert [o.study for o in engine.outcomes_in(tmp_path) if not o.is_good] == ["toy/squares"]
    engine.reproduce([make_plan(Squares())], tmp_path, Executor(), QuietProgress())
    assert all(outcome.is_good for outcome in engine.outcomes_in(tmp_path))


def test_a_figure_that_is_gone_is_named_and_drawn_again(tmp_path):
    engine.reproduce([make_plan(Squares())], tmp_path, Executor(), QuietProgress())
    (tmp_path / "toy/squares/quick/figure.png").unlink()
    engine.write_report(tmp_path)
    assert "figure.png cannot be read (No such file or directory)" in (tmp_path / "report.html").read_text()
    engine.reproduce([make_plan(Squares())], tmp_path, Executor(), QuietProgress())
    assert "cannot be read" not in (tmp_path / "report.html").read_text()


def test_a_skipped_study_keeps_what_an_earlier_run_found(tmp_path):
    class Fed(Hungry):
        is_fed = True

        def missing(self):
            return "" if self.is_fed else super().missing()

    plans = [make_plan(Fed())]
    engine.reproduce(plans, tmp_path, Executor(), QuietProgress())
    before = (tmp_path / "toy/hungry/quick/outcome.json").read_bytes()
    Fed.is_fed = False
    outcomes, _ = engine.reproduce(plans, tmp_path, Executor(), QuietProgress())
    assert (tmp_path / "toy/hungry/quick/outcome.json").read_bytes() == before
    assert outcomes[0].status == "skipped" and "The report keeps the result of 2" in outcomes[0].summary
    assert "<img" in (tmp_path / "report.html").read_text()


def test_a_folder_that_cannot_be_made_is_named():
    for study in (Squares(), Hungry()):
        with pytest.raises(StoreError, match="cannot write to /dev/null/x"):
            engine.reproduce([make_plan(study)], Path("/dev/null/x"), Executor(), QuietProgress())


def test_the_time_left_is_that_of_the_own_share(tmp_path):
    sweep = engine.open_sweep(make_plan(Squares()), tmp_path)
    _keep_share([sweep], engine.Shard(1, 4))
    clock = _Clock(sweep)
    for point in sweep.left[:2]:
        sweep.put(point, record(sweep.plan.study, point.parameters))
        clock.points += 1
    clock.start -= 100  # of two points; one is left
    assert clock.remaining in ("about 50 s left", "about 51 s left")


def browser(profile, width):
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = "/usr/bin/chromium"
    for flag in (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--user-data-dir={profile}",
        f"--window-size={max(width, 500)},900",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    # A window has a least width; a phone is emulated.
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    return driver


@pytest.mark.slow
@pytest.mark.skipif(
    not (Path("/usr/bin/chromium").exists() and Path("/usr/bin/chromedriver").exists()),
    reason="chromium and chromedriver are not installed in /usr/bin",
)
@pytest.mark.parametrize("width", [1200, 360])
def test_the_page_in_a_browser(results, width):
    out, _ = results
    profile = tempfile.mkdtemp(prefix="profile-")
    driver = browser(profile, width)
    try:
        driver.set_page_load_timeout(120)
        driver.get((out / "report.html").as_uri())
        assert driver.title == "nullcline report"
        measure = "return [document.documentElement.scrollWidth, window.innerWidth]"
        content, window = driver.execute_script(measure)
        assert window == width and content <= width, f"the page is {content} wide in a window of {window}"
        images = driver.execute_script("return [...document.images].map(i => [i.complete, i.naturalWidth])")
        assert len(images) == 4 and all(done and size > 100 for done, size in images)
        # Headings of the table stay in reach of a screen reader even where rows become cards.
        roles = driver.execute_script(
            "return [...document.querySelectorAll('table')].map(t => [t.getAttribute('role'), "
            "t.querySelectorAll('[role=columnheader]').length, getComputedStyle(t.tHead).display])"
        )
        assert roles and all(role == ["table", 5, role[2]] and role[2] != "none" for role in roles)
        driver.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
        content, _ = driver.execute_script(measure)
        assert content <= width
        assert driver.get_log("browser") == []
        asked = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
        asked = [entry["params"] for entry in asked if entry["method"] == "Network.requestWillBeSent"]
        # The browser's own new tab asks for its parts too; the page is known by its address.
        here = (out / "report.html").as_uri()
        urls = [entry["request"]["url"] for entry in asked if entry["documentURL"] == here]
        assert here in urls and all(url == here or url.startswith("data:") for url in urls), urls
        assert not [entry for entry in asked if entry["request"]["url"].startswith(("http:", "https:", "ws"))]
        driver.save_screenshot(str(out / f"screenshot-{width}.png"))
    finally:
        driver.quit()
        shutil.rmtree(profile, ignore_errors=True)


def test_the_report_is_there_after_the_first_study(tmp_path):
    seen = []

    class Watching(QuietProgress):
        def end(self, sweep, verdict):
            seen.append((sweep.plan.study.source, (tmp_path / "report.html").exists(), verdict))

    class Later(Exponentials):
        def compute(self, size, seed):
            assert "toy/squares" in (tmp_path / "report.html").read_text()
            return {"trace": 0.0 * seed, "length": 1.0 * seed}

    plans = engine.cheapest_first([make_plan(Later()), make_plan(Squares())])
    outcomes, _ = engine.reproduce(plans, tmp_path, Executor(), Watching())
    assert [outcome.study for outcome in outcomes] == ["toy/squares", "toy/exponentials"]
    assert all(outcome.status == "complete" for outcome in outcomes), outcomes
    assert len(seen) == 2
