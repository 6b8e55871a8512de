"""The console in a headless Chromium: everything a person does there, against a real server."""

from collections.abc import Iterator

import httpx
import pytest

from lakefork.server.console import WEB
from support.api_server import ApiServer
from support.browser import CHROMIUM, Page, open_page
from support.sql_lake import SqlLake

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_page(tmp_path_factory.mktemp("chromium")) as page:
        yield page


@pytest.fixture
def console(page: Page, api: ApiServer, admin: str, ns: str, lake: SqlLake) -> Page:
    """Signed in; its namespace has one table with three rows."""
    lake.run(
        f"CREATE SHARED TABLE {ns}.countries (code STRING PRIMARY KEY, name STRING, people BIGINT); "
        f"INSERT INTO {ns}.countries VALUES ('DE', 'Germany', 9007199254740993), ('FR', 'a \"b\", <i>c</i>', 7), ('JP', NULL, 10)"
    )
    page.size(1200, 800)
    page.open(f"{api.url}/")
    page.evaluate("sessionStorage.clear(), localStorage.clear()")
    page.open(f"{api.url}/")
    page.wait_for("document.getElementById('sign-in').open")
    sign_in(page, admin)
    page.wait_for(f"document.getElementById('tree').innerText.includes('{ns}')")
    page.problems.clear()
    return page


def sign_in(page: Page, token: str) -> None:
    page.evaluate(f"document.getElementById('token').value = '{token}'")
    page.click("#sign-in button")


def write(page: Page, text: str) -> None:
    page.evaluate(
        "((t, value) => { t.value = value; t.focus(); t.setSelectionRange(value.length, value.length); "
        f"t.dispatchEvent(new Event('input')) }})(document.getElementById('text'), {text!r})"
    )


def run(page: Page, text: str, button: str = "#run") -> None:
    write(page, text)
    page.evaluate(
        "document.getElementById('results').replaceChildren(), document.getElementById('problem').textContent = ''"
    )
    page.click(button)
    page.wait_for(
        "!document.getElementById('run').disabled && "
        "(document.querySelector('.result') !== null || document.getElementById('problem').textContent !== '')"
    )


def cells(page: Page) -> list[list[str]]:
    found: list[list[str]] = page.evaluate(
        "[...document.querySelectorAll('.grid tbody tr')].map((row) => [...row.children].map((cell) => cell.textContent))"
    )
    return found


def test_sign_in_is_refused_and_remembered_for_the_tab(page: Page, api: ApiServer, admin: str) -> None:
    page.open(f"{api.url}/")
    page.evaluate("sessionStorage.clear()")
    page.open(f"{api.url}/")
    page.wait_for("document.getElementById('sign-in').open")
    sign_in(page, "nonsense")
    page.wait_for("document.getElementById('sign-in-problem').textContent.includes('malformed')")
    sign_in(page, admin)
    page.wait_for("!document.getElementById('sign-in').open")
    assert "root in main" in page.text("#who")
    page.open(f"{api.url}/")
    page.wait_for("document.getElementById('who').textContent")
    assert page.evaluate(
        "localStorage.length === 0 || !JSON.stringify(localStorage).includes(sessionStorage.getItem('lakefork.token'))"
    )
    page.click("#sign-out")
    page.wait_for("document.getElementById('sign-in')?.open")
    assert page.evaluate("sessionStorage.length") == 0


def test_a_grid_that_is_sorted_by_numbers_and_copied(console: Page, ns: str) -> None:
    run(console, f"SELECT code, name, people FROM {ns}.countries ORDER BY code")
    assert cells(console) == [
        ["DE", "Germany", "9007199254740993"],
        ["FR", 'a "b", <i>c</i>', "7"],
        ["JP", "NULL", "10"],
    ]
    console.click(".grid th:nth-child(3) button")
    assert [row[2] for row in cells(console)] == ["7", "10", "9007199254740993"]
    assert console.evaluate("document.querySelector('.grid th:nth-child(3)').getAttribute('aria-sort')") == "ascending"
    console.click(".grid th:nth-child(3) button")
    assert [row[2] for row in cells(console)] == ["9007199254740993", "10", "7"]
    console.evaluate(
        "window.copied = [], Object.defineProperty(navigator, 'clipboard', { value: { writeText: async (text) => copied.push(text) }, configurable: true })"
    )
    for button in console.evaluate(
        "[...document.querySelectorAll('.result .bar button:not([hidden])')].map((b) => b.textContent)"
    ):
        console.evaluate(
            f"[...document.querySelectorAll('.result button')].find((b) => b.textContent === {button!r}).click()"
        )
    console.wait_for("copied.length === 2")
    csv, json = console.evaluate("copied")
    assert csv == 'code,name,people\r\nDE,Germany,9007199254740993\r\nJP,,10\r\nFR,"a ""b"", <i>c</i>",7\r\n'
    assert '"people": "9007199254740993"' in json
    assert not console.problems


def test_many_rows_are_shown_in_parts(console: Page) -> None:
    run(console, "SELECT i FROM range(1200) r(i); INSERT INTO nowhere.t VALUES (1)")
    assert len(cells(console)) == 500
    assert "500 of 1,200 rows" in console.text(".result")
    console.evaluate(
        "[...document.querySelectorAll('.result button')].find((b) => b.textContent === 'Show more').click()"
    )
    assert len(cells(console)) == 1000
    assert "nowhere" in console.text("#problem")


def test_an_error_is_shown_at_its_place_in_the_text(console: Page) -> None:
    run(console, "SELECT 1;\n  SELECT 2 FRM x WHERE 3")
    assert "line 2" in console.text("#problem")
    assert console.evaluate("document.querySelector('#paint mark').textContent") == "x"
    assert console.evaluate("document.getElementById('text').selectionStart") == len("SELECT 1;\n  SELECT 2 FRM ")
    assert cells(console) == [["1"]]
    write(console, "SELECT 1")
    assert console.evaluate("document.querySelector('#paint mark') === null")


def test_names_are_completed_by_keys(console: Page, ns: str) -> None:
    write(console, f"SELECT * FROM {ns}.co")
    console.wait_for("!document.getElementById('names').hidden")
    assert f"{ns}.countries" in console.text("#names")
    console.key("Enter")
    assert console.evaluate("document.getElementById('text').value") == f"SELECT * FROM {ns}.countries"
    assert console.evaluate("document.getElementById('names').hidden")
    write(console, "SELECT peo")
    console.key("Escape")
    assert console.evaluate("document.getElementById('names').hidden")
    assert "people" in console.evaluate("document.getElementById('tree').textContent")


def test_explain_shows_what_would_be_read(console: Page, ns: str) -> None:
    run(console, f"SELECT 1; SELECT * FROM {ns}.countries WHERE code = 'DE'", "#explain")
    assert "hot versions" in console.text(".plan")
    assert f"{ns}.countries" in console.text(".plan")


def test_history_stays_in_the_browser(console: Page, api: ApiServer) -> None:
    run(console, "SELECT 41")
    run(console, "SELECT 42")
    write(console, "unsent")
    console.evaluate(
        "document.getElementById('text').dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowUp', altKey: true, cancelable: true }))"
    )
    assert console.evaluate("document.getElementById('text').value") == "SELECT 42"
    console.open(f"{api.url}/")
    console.click("#show-history")
    assert "SELECT 41" in console.text("#history")
    console.evaluate("[...document.querySelectorAll('#history li button')].at(-1).click()")
    assert console.evaluate("document.getElementById('text').value") == "SELECT 41"


def test_a_statement_is_cancelled(console: Page) -> None:
    write(console, "SELECT sum(sin(a.i + b.i)) FROM range(10000000) a(i), range(1000) b(i)")
    console.evaluate(
        "document.getElementById('text').dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', ctrlKey: true, cancelable: true }))"
    )
    console.wait_for("!document.getElementById('cancel').disabled")
    console.click("#cancel")
    console.wait_for("document.getElementById('status').textContent === 'cancelled'")


def test_narrow_and_dark_it_fits_and_nothing_comes_from_elsewhere(console: Page, api: ApiServer, ns: str) -> None:
    console.size(360, 700)
    console.prefer("dark")
    run(console, f"SELECT * FROM {ns}.countries")
    assert console.evaluate("document.documentElement.scrollWidth <= 360")
    assert console.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 21, 28)"
    console.prefer("light")
    assert {httpx.URL(url).host for url in console.requests if url.startswith("http")} == {api.address[0]}


def test_names_of_tables_cannot_become_markup(console: Page, lake: SqlLake, ns: str) -> None:
    lake.run(f'CREATE USER TABLE {ns}."<img src=x onerror=alert(1)>" (id BIGINT PRIMARY KEY, "<b>" STRING)')
    console.click("#tree-reload")
    console.wait_for("document.getElementById('tree').textContent.includes('<img src=x')")
    run(console, "SELECT '<script>alert(1)</script>' AS \"<i>x</i>\"")
    assert cells(console) == [["<script>alert(1)</script>"]]
    assert console.evaluate("document.querySelector('#tree img, .result script, .result i') === null")


def test_answers_forbid_what_the_page_does_not_need(api: ApiServer) -> None:
    for path in ("/", *(f"/console/{file.name}" for file in WEB.iterdir())):
        answer = api.http.get(path)
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_live_query_shows_changes_as_they_happen(console: Page, ns: str, lake: SqlLake) -> None:
    write(console, f"SELECT code, people FROM {ns}.countries WHERE people > 5;")
    console.click("#follow")
    shown = "[...document.querySelectorAll('.live tbody tr:not(.gone)')].map(line => line.innerText).sort().join()"
    console.wait_for(f"{shown} === 'DE\\t9007199254740993,FR\\t7,JP\\t10'")
    lake.run(f"UPDATE {ns}.countries SET people = 8 WHERE code = 'FR'; DELETE FROM {ns}.countries WHERE code = 'JP'")
    lake.run(f"INSERT INTO {ns}.countries VALUES ('IT', 'Italy', 59), ('VA', 'Vatican', 1)")
    console.wait_for(f"{shown} === 'DE\\t9007199254740993,FR\\t8,IT\\t59'")
    assert console.evaluate("document.querySelectorAll('.live .flash').length") == 2
    console.click(".live .bar button")
    console.wait_for("document.querySelector('.live [role=status]').textContent === 'stopped'")
    assert console.problems == []
