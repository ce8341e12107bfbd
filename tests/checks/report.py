#!/usr/bin/env python3
# The report as its readers meet it: a real run writes it, `lamina report` makes it anew and
# compares two, bad input ends with one line, and Chromium clicks, sorts, filters, fetches nothing.
import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import urllib.request

programs = pathlib.Path(os.environ["LAMINA_BUILD"]) / "bin"
root = pathlib.Path(tempfile.mkdtemp(prefix="report."))
for variable in [v for v in os.environ if v.startswith("LAMINA_")]:
    del os.environ[variable]  # the programs repeat them
os.environ["LAMINA_CACHE"] = str(root / "cache")
failures = 0
SKIPPED = 77


def expect(what, found, wanted=True):
    global failures
    if found != wanted:
        failures += 1
        print(f"FAILED {what}: found {found!r}, expected {wanted!r}", flush=True)


def run(*words, **options):
    return subprocess.run([str(w) for w in words], text=True, capture_output=True, cwd=root,
                          timeout=240, **options)


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


# ---- the command ---------------------------------------------------------------------------------

def make_reports():
    for name, batch in (("one", 4), ("two", 8)):
        done = run("mpirun", "-n", "2", programs / "bench_network", "--model", "lenet",
                   "--batch-size", batch, "--warmup", "2", "--iters", "4", "--report", name)
        if done.returncode != 0:
            sys.exit(f"bench_network failed:\n{done.stdout}{done.stderr}")
    done = run(programs / "lamina", "report", "one/profile.json", "--report", "deep/anew")
    expect("status of a report made anew", done.returncode, 0)
    expect("files, named and written", sorted(done.stdout.split()),
           sorted(str(p.relative_to(root)) for p in (root / "deep/anew").iterdir()))
    made, anew = contents(root / "one"), contents(root / "deep/anew")
    for file in ("index.html", "profile.json", "profile.csv", "roofline.svg"):
        expect(f"{file} is the same when made anew", made[file] == anew[file])

    done = run(programs / "lamina", "report", "one/profile.json", "two/profile.json", "--report",
               "both", "--top", "3")
    expect("status of a comparison", done.returncode, 0)
    expect("a comparison warns", "global batch differs: 8 before, 16 after" in done.stdout)
    expect("it prints the largest differences",
           len(re.findall(r"^\S+ +(?:forward|\w+_grad|update) ", done.stdout, re.M)), 3)
    expect("it keeps both profiles", contents(root / "both")["before.json"],
           contents(root / "one")["profile.json"])


def bad(expected, *arguments, status=1, **options):
    before = contents(root / "one")
    done = run(programs / "lamina", "report", *arguments, **options)
    what = f"lamina report {' '.join(map(str, arguments))}"
    expect(f"{what}: status", done.returncode, status)
    expect(f"{what}: stdout", done.stdout, "")
    expect(f"{what}: lines ({done.stderr!r})", done.stderr.count("\n"), 1)
    expect(f"{what}: '{expected}' in {done.stderr!r}",
           re.search("^lamina: error: .*" + expected, done.stderr) is not None)
    expect(f"{what}: the report before stays", contents(root / "one") == before)


def bad_input():
    good = json.loads((root / "one/profile.json").read_text())

    def file(name, content):
        (root / name).write_text(content if isinstance(content, str) else json.dumps(content))
        return name

    to = ("--report", "one")
    bad("missing.json", "missing.json", *to)
    bad("cut.json", file("cut.json", (root / "one/profile.json").read_text()[:5000]), *to)
    bad("empty.json", file("empty.json", ""), *to)
    bad("foreign.json.*not a profile", file("foreign.json", {"schema": "other"}), *to)
    bad("list.json.*not a profile", file("list.json", []), *to)
    bad("new.json.*version.*expected 4.*99", file("new.json", {**good, "version": 99}), *to)
    bad("rows.json", file("rows.json", {**good, "rows": 5}), *to)
    bad("one: expected a regular file", "one", *to)
    bad("cut.json", "one/profile.json", "cut.json", *to)
    bad("got 3 files", "one/profile.json", "one/profile.json", "one/profile.json", *to)
    bad("got 0 files", *to)
    bad("is a file", "one/profile.json", "--report", file("file", "x"))
    bad("is a file", "one/profile.json", "--report", "file/inside")
    bad("/proc/report", "one/profile.json", "--report", "/proc/report")
    bad("folder", "one/profile.json", "--report", "")
    bad("did you mean --report", "one/profile.json", "--reprot", "one", status=2)
    bad("--top", "one/profile.json", *to, "--top", "-1", status=2)
    bad("one/profile.json: not written", "two/profile.json", *to, restore_signals=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)))


# ---- the page ------------------------------------------------------------------------------------

class Browser:
    """Chromium by way of chromedriver: W3C WebDriver over HTTP."""

    def __init__(self, width):
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE,
                                       text=True)
        for line in self.driver.stdout:
            if found := re.search(r"successfully on port (\d+)", line):
                self.base = f"http://127.0.0.1:{found[1]}/session"
                break
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     f"--window-size={width},1000", f"--user-data-dir={root}/browser{width}"]
        wanted = {"browserName": "chrome", "goog:chromeOptions": {"args": arguments},
                  "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        session = self.call("", {"capabilities": {"alwaysMatch": wanted}})
        self.base += "/" + session["sessionId"]

    def call(self, path, data=None, method=None):
        request = urllib.request.Request(
            self.base + path, None if data is None else json.dumps(data).encode(),
            {"Content-Type": "application/json"}, method=method)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
                request, timeout=60) as answer:
            return json.load(answer)["value"]

    def open(self, path):
        self.call("/url", {"url": pathlib.Path(path).as_uri()})

    def js(self, script, *arguments):
        return self.call("/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector):
        return self.call("/element", {"using": "css selector", "value": selector})

    def click(self, element):
        if isinstance(element, str):
            element = self.find(element)
        self.call(f"/element/{next(iter(element.values()))}/click", {})

    def keys(self, element, text):
        if isinstance(element, str):
            element = self.find(element)
        self.call(f"/element/{next(iter(element.values()))}/value", {"text": text})

    def log(self, kind):
        return self.call("/se/log", {"type": kind})

    def close(self):
        self.call("", method="DELETE")
        self.driver.terminate()
        self.driver.wait()


FREE_DOT = """
  const dots = [...document.querySelectorAll('#roofline svg [data-row]')];
  dots[0].scrollIntoView({block: 'center'});
  return dots.find((dot) => {
    const box = dot.getBoundingClientRect();
    const x = box.x + box.width / 2, y = box.y + box.height / 2;
    return dot.dataset.row !== arguments[0] && document.elementFromPoint(x, y) === dot;
  });"""
SELECTED = """
  return [...document.querySelectorAll(arguments[0])]
      .filter((e) => e.classList.contains('selected'))
      .map((e) => e.dataset.row);"""
COLUMN = """
  const heads = [...document.querySelectorAll('#rows thead th')];
  const column = heads.findIndex((h) => h.textContent.trim() === arguments[0]);
  return {order: heads.map((h) => h.getAttribute('aria-sort'))[column],
          sorted: heads.filter((h) => h.getAttribute('aria-sort') !== 'none').length,
          values: [...document.querySelectorAll('#rows tbody:not([hidden]) tr:not([hidden])')]
              .map((row) => row.cells[column].textContent.trim())};"""
HEAD = """
  return [...document.querySelectorAll('#rows thead th')]
      .find((h) => h.textContent.trim() === arguments[0]).querySelector('button');"""
ROWS, DOTS = "#rows tbody tr", "#roofline svg [data-row]"


def selection(browser):
    dot = browser.js(FREE_DOT, None)
    number = browser.js("return arguments[0].dataset.row", dot)
    browser.click(dot)
    expect("the row of the dot that was clicked", browser.js(SELECTED, ROWS), [number])
    expect("that dot is marked", browser.js(SELECTED, DOTS), [number])
    expect("that row is in sight", browser.js("""
      const row = document.querySelector('#rows tr.selected').getBoundingClientRect();
      const box = document.querySelector('.scroll').getBoundingClientRect();
      return row.top >= Math.max(0, box.top) &&
          row.bottom <= Math.min(innerHeight, box.bottom);"""))

    other = browser.js("return arguments[0].dataset.row", browser.js(FREE_DOT, number))
    browser.click(f'{ROWS}[data-row="{other}"] td')
    expect("the dot of the row that was clicked", browser.js(SELECTED, DOTS), [other])
    expect("that row alone is marked", browser.js(SELECTED, ROWS), [other])

    browser.js("document.querySelector(arguments[0]).focus()", f'{ROWS}[data-row="{number}"]')
    browser.keys(f'{ROWS}[data-row="{number}"]', "\ue007")
    expect("Enter selects a row", browser.js(SELECTED, DOTS), [number])
    browser.keys(f'{ROWS}[data-row="{number}"]', "\ue00c")
    expect("Escape selects none", browser.js(SELECTED, DOTS), [])

    browser.click(browser.js("return document.querySelector('[data-show=layers]')"))
    browser.click("#rows tbody.layers tr td")
    marked = browser.js("""
      const row = document.querySelector('#rows tr.selected');
      const rows = [...document.querySelectorAll('tbody.passes tr')];
      const passes = rows.filter((r) => r.dataset.layer === row.dataset.layer);
      const dots = [...document.querySelectorAll('#roofline svg .selected')];
      return dots.length > 0 &&
          dots.every((d) => passes.some((p) => p.dataset.row === d.dataset.row));""")
    expect("a layer's row marks the dots of its passes", marked)
    browser.click(browser.js("return document.querySelector('[data-show=passes]')"))


def sorting(browser):
    for title, numbers in (("time µs", True), ("layer", False)):
        for _ in range(2):
            browser.click(browser.js(HEAD, title))
            column = browser.js(COLUMN, title)
            values = [v for v in column["values"] if v]
            down = column["order"] == "descending"
            expect(f"{title} is sorted, {column['order']}",
                   values == sorted(values, key=float, reverse=down) if numbers
                   else (values[0] > values[-1]) == down)
            expect("one column says that it is sorted", column["sorted"], 1)
            orders.append(column["order"])
    expect("a second click turns the order around", orders,
           ["descending", "ascending", "ascending", "descending"])


orders = []


def filtering(browser):
    bounds = browser.js("""
      const heads = [...document.querySelectorAll('#rows thead th')];
      const column = heads.findIndex((h) => h.textContent.trim() === 'bound');
      return [...document.querySelectorAll('#rows tbody:not([hidden]) tr')]
          .map((row) => row.cells[column].innerText.trim());""")
    expect("every row shows its bound, whichever columns do", all(bounds))
    browser.keys("#filter", "conv forward")
    rows = browser.js(COLUMN, "layer")["values"]
    total = browser.js("return document.querySelectorAll('tbody.passes tr').length")
    expect("the filter leaves some rows", 0 < len(rows) < total)
    expect("of all that it asks for", all("conv" in r.lower() for r in rows))
    expect("and counts them", browser.js("return document.getElementById('shown').textContent"),
           f"{len(rows)} of {total} rows")


def theme(browser):
    paper = "return getComputedStyle(document.documentElement).backgroundColor"
    light = browser.js(paper)
    browser.click("#theme")
    dark = browser.js(paper)
    expect("the button changes the colours", light != dark)
    browser.click("#theme")
    expect("and changes them back", browser.js(paper), light)


def silence(browser, name):
    fetched = browser.js("return performance.getEntriesByType('resource').map((e) => e.name)")
    expect(f"{name}: resources", [f for f in fetched if not f.startswith("data:")], [])
    events = [json.loads(entry["message"])["message"] for entry in browser.log("performance")]
    urls = [e["params"]["request"]["url"] for e in events  # the browser's own pages fetch, too
            if e["method"] == "Network.requestWillBeSent"
            and e["params"]["documentURL"].startswith("file://")]
    expect(f"{name}: the page itself was requested", any(u.endswith(".html") for u in urls))
    expect(f"{name}: requests", [u for u in urls if not u.startswith(("file://", "data:"))], [])
    expect(f"{name}: messages of the browser", [m["message"] for m in browser.log("browser")], [])


def pages():
    for width in (1280, 1920):
        browser = Browser(width)
        try:
            for name in ("one", "both"):
                browser.open(root / name / "index.html")
                expect(f"{name}: nothing sticks out at {width}", browser.js(
                    "return document.documentElement.scrollWidth <= innerWidth"))
                if name == "one":
                    selection(browser)
                if name == "one" and width == 1280:
                    sorting(browser)
                    filtering(browser)
                    theme(browser)
                if name == "both":
                    first = browser.js(COLUMN, "difference µs")["values"]
                    sizes = [abs(float(v)) for v in first]
                    expect("differences, the largest first", sizes == sorted(sizes, reverse=True))
                    dot = browser.js(FREE_DOT, None)
                    browser.click(dot)
                    expect("a dot of a comparison has its row", browser.js(SELECTED, ROWS),
                           [browser.js("return arguments[0].dataset.row", dot)])
                silence(browser, name)
        finally:
            browser.close()


try:
    make_reports()
    bad_input()
    browsers = shutil.which("chromedriver") and (shutil.which("chromium") or
                                                 shutil.which("google-chrome"))
    if browsers:
        pages()
    elif failures == 0:
        print("skipped: the page was not opened, as chromium and chromedriver are not installed "
              "(Debian: chromium-driver)")
        sys.exit(SKIPPED)
finally:
    shutil.rmtree(root, ignore_errors=True)
sys.exit(1 if failures else 0)
