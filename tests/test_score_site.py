"""The pages of the scoreboard: what they hold, and that they work in a real browser."""

from __future__ import annotations

import html.parser
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sardonyx.score import site, suite
from sardonyx.score.judge import CLASSES, Cell
from sardonyx.score.score import Column, Score

HOSTILE = '<img src=x onerror="document.title=1">\x1b[31m&\u202e'
OPS = ("Relu", "Conv", "Softmax", "Cast", "Attention")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def example(date: str = "2026-01-02", shift: int = 0) -> Score:
    """Two engines that run and a broken one, over the cases of a few operators."""
    names = [case.name for op in OPS for case in suite.operators()[op]]
    kinds = list(CLASSES)
    good, bad = Column("numpy", "ours", "0.1.0"), Column("<b>peer</b>", "peer", "2.0")
    good.cells["forward"] = {name: Cell("pass") for name in names}
    good.cells["gradient"] = {name: Cell("pass") for name in names if "relu" in name}
    bad.cells["forward"] = {
        name: Cell(kinds[(i + shift) % len(kinds)], HOSTILE) for i, name in enumerate(names)
    }
    bad.cells["forward"]["test_relu"] = Cell("crash", "SIGSEGV: it fell over")
    bad.cells["forward"]["test_softmax_example"] = Cell("unsupported", "no Softmax")
    bad.cells["forward"]["test_softmax_example_expanded"] = Cell("pass")
    broken = Column("dead", "peer", "0.0", canary=f"does not start: {HOSTILE}")
    good.cells["training"] = {"mlp_sgd": Cell("pass"), "lstm": Cell("crash", HOSTILE)}
    cases = {"forward": names, "gradient": list(good.cells["gradient"])}
    cases["training"] = ["mlp_sgd", "lstm"]
    return Score("0.1.0", "1.23.2", date, [good, bad, broken], cases)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    older = folder / "older"
    example("2025-06-01", shift=3).save(older / "2025.json")
    return site.write(example(), folder / "site", older).parent


class Parsed(html.parser.HTMLParser):
    """Tags, links and texts of a page; unclosed tags."""

    VOID = {"meta", "br", "input", "img", "link", "line", "circle", "rect", "polyline"}

    def __init__(self, path: Path):
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [v or "" for k, v in attrs if k in ("href", "src")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.VOID:
            return
        assert self.open.pop() == tag


def test_pages_are_whole_and_need_no_network(pages: Path) -> None:
    result = sorted(pages.rglob("*.html"))
    assert len(result) == 3 + len(OPS)
    for path in result:
        parsed = Parsed(path)
        assert not parsed.open
        assert not {"img", "link", "iframe", "b-peer"} & set(parsed.tags)
        for link in parsed.links:
            assert not re.match(r"[a-z]+:|//", link), link
            assert (path.parent / re.split("[#?]", link)[0]).exists(), link


def test_names_and_messages_are_text(pages: Path) -> None:
    for path in pages.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert "<img" not in text and "<b>peer" not in text
        assert "\x1b" not in text and "\u202e" not in text
    assert "&lt;img src=x" in (pages / "op" / "Relu.html").read_text()
    assert "&lt;b&gt;peer&lt;/b&gt;" in (pages / "matrix.html").read_text()


def test_json_lies_beside(pages: Path) -> None:
    again = Score.from_json((pages / "score.json").read_text())
    assert [c.name for c in again.columns] == ["numpy", "<b>peer</b>", "dead"]


def test_operator_page_says_what_and_why(pages: Path) -> None:
    text = (pages / "op" / "Softmax.html").read_text()
    assert "normalized exponential" in text
    assert "1, 11, 13" in text
    row = text.split('id="test_softmax_example"')[1].split("</details>")[0]
    assert "passes when expanded to its body" in row
    assert "broken" in (pages / "index.html").read_text()


def test_the_text_of_onnx_flows_and_its_code_is_code() -> None:
    doc = 'Takes `x` and\ngives ``y``.\n```\ny = <x> +\n  1\n```\nIt is\n"quick".'
    assert site._lines(doc.replace('"', '\\"')).splitlines() == [
        "Takes <code>x</code> and gives <code>y</code>.",
        "<code>y = &lt;x&gt; +</code>",
        "<code>  1</code>",
        "It is &quot;quick&quot;.",
    ]


def test_the_overview_leads_with_wrong_answers_and_whole_operators(pages: Path) -> None:
    text = (pages / "index.html").read_text()
    heads = re.findall(r"<th class=r>([^<]*)</th>", text)
    assert heads[:3] == ["wrong", "whole operators", "pass"]
    row = text.split("sardonyx on numpy</td>")[1].split("</tr>")[0]
    assert '<b class="good">0</b>' in row and f"{len(OPS)} of {len(OPS)}" in row
    row = text.split("&lt;b&gt;peer&lt;/b&gt;</td>")[1].split("</tr>")[0]
    wrong = example().columns[1].count()["wrong numbers"]
    assert "matrix.html?engine=%3Cb%3Epeer%3C%2Fb%3E&amp;kind=wrong+numbers" in row
    assert wrong and f'<b class="bad">{wrong}</b>' in row and f"0 of {len(OPS)}" in row


def test_a_sampled_page_says_so(tmp_path: Path) -> None:
    score = example()
    assert "a sample" not in (site.write(score, tmp_path / "all").parent / "index.html").read_text()
    score.sample = 10
    page = site.write(Score.from_json(score.to_json()), tmp_path / "some").parent / "index.html"
    assert "a sample, one case in 10" in page.read_text()


def test_training_records_are_listed(pages: Path) -> None:
    text = (pages / "index.html").read_text()
    rows = text.split("Training records")[1].split("</table>")[0]
    assert rows.count("<code>") == 2 and "crash" in rows and "&lt;img" in rows


def test_history_has_every_score(pages: Path) -> None:
    text = (pages / "history.html").read_text()
    assert "2025-06-01" in text and "2026-01-02" in text
    assert text.count("<polyline") == 2


# -- in a browser -------------------------------------------------------------------------------


def executable() -> str | None:
    return next(filter(None, map(shutil.which, BROWSERS)), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = executable()
    if path is None:
        pytest.skip(f"no browser is installed: none of {', '.join(BROWSERS)}")
    with driver.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def visit(browser: Any, pages: Path) -> Iterator[Any]:
    contexts: list[Any] = []
    problems: list[str] = []

    def go(page: str, width: int = 1200, scheme: str = "light", **settings: Any) -> Any:
        size = {"width": width, "height": 800}
        context = browser.new_context(viewport=size, color_scheme=scheme, **settings)
        contexts.append(context)
        opened = context.new_page()
        opened.on("pageerror", lambda error: problems.append(str(error)))
        opened.on("console", lambda message: problems.append(message.text))
        opened.on("request", lambda request: problems.extend(
            [request.url] if not request.url.startswith("file:") else []))  # fmt: skip
        opened.goto(f"file://{pages}/{page}")
        return opened

    yield go
    for context in contexts:
        context.close()
    assert not problems


def shown(page: Any) -> list[str]:
    rows = page.locator("[data-row]:visible").all()
    return [row.get_attribute("data-row") for row in rows]


def control(page: Any, name: str) -> Any:
    return page.locator(f"[data-control={name}]")


def test_search_filters_operators(visit: Any) -> None:
    page = visit("matrix.html")
    assert set(shown(page)) == set(OPS)
    page.get_by_label("Search operators").fill("SOFT")
    assert shown(page) == ["Softmax"]
    assert page.locator(".count").inner_text() == "1 operators"
    page.reload()
    assert shown(page) == ["Softmax"], "the address keeps the search"
    page.get_by_label("Search operators").fill("nothing like this")
    assert shown(page) == []


def test_filters_combine(visit: Any) -> None:
    page = visit("matrix.html")
    control(page, "family").select_option("nn")
    assert set(shown(page)) == {"Conv", "Attention"}
    control(page, "family").select_option("")
    control(page, "kind").select_option("any")
    assert set(shown(page)) == set(OPS), "the peer passes nothing wholly"
    control(page, "engine").select_option("numpy")
    assert shown(page) == []
    control(page, "kind").select_option("")
    control(page, "axis").select_option("gradient")
    assert shown(page) == ["Relu"]


def test_a_figure_leads_to_the_cases_behind_it(visit: Any) -> None:
    page = visit("index.html")
    wrong = example().columns[1].count()["wrong numbers"]
    page.get_by_role("link", name=str(wrong), exact=True).first.click()
    page.wait_for_load_state()
    assert control(page, "engine").input_value() == "<b>peer</b>"
    assert control(page, "kind").input_value() == "wrong numbers"
    page.locator("[data-row]:visible a").first.click()
    page.wait_for_load_state()
    assert control(page, "kind").input_value() == "wrong numbers", "filters go along"
    assert shown(page)
    for row in page.locator("[data-row]:visible").all():
        assert row.locator('[data-engine="<b>peer</b>"]').first.get_attribute("data-kinds") == (
            "wrong numbers"
        )


def test_from_the_matrix_to_a_case(visit: Any) -> None:
    page = visit("matrix.html")
    page.get_by_role("link", name="Relu", exact=True).click()
    assert page.locator("h1").inner_text() == "Relu"
    message = page.get_by_text("SIGSEGV: it fell over")
    assert not message.is_visible()
    page.locator("summary", has_text="test_relu").first.click()
    assert message.is_visible()
    page.get_by_role("link", name="Operators").click()
    assert page.locator("h1").inner_text() == "Engines × operators"


def test_a_link_to_a_case_opens_it(visit: Any) -> None:
    page = visit("op/Relu.html#test_relu")
    assert page.get_by_text("SIGSEGV: it fell over").is_visible()
    control(page, "kind").select_option("crash")
    control(page, "engine").select_option("<b>peer</b>")
    assert "test_relu" in shown(page)
    control(page, "kind").select_option("binding limit")
    assert "test_relu" not in shown(page)


@pytest.mark.parametrize("file", ["index.html", "matrix.html", "op/Cast.html", "history.html"])
def test_nothing_is_wider_than_a_phone(visit: Any, file: str) -> None:
    page = visit(file, width=390, is_mobile=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("innerWidth") == 390


def test_dark_is_dark(visit: Any) -> None:
    brightness = {}
    for scheme in ("light", "dark"):
        page = visit("index.html", scheme=scheme)
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        brightness[scheme] = sum(map(int, re.findall(r"\d+", colour)[:3]))
    assert brightness["dark"] < 150 < 600 < brightness["light"]


def test_print_shows_all_without_controls(visit: Any) -> None:
    page = visit("op/Relu.html")
    page.emulate_media(media="print")
    assert not page.locator(".controls").is_visible()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.get_by_text("SIGSEGV: it fell over").is_visible()


def test_it_is_readable_without_scripts(visit: Any) -> None:
    page = visit("matrix.html", java_script_enabled=False)
    assert page.get_by_role("link", name="Softmax", exact=True).is_visible()
