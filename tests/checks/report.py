#!/usr/bin/env python3
# The report as its readers meet it: a real run writes it, `lamina report` makes it anew and
# compares two, bad input ends with one line, and Chromium clicks, sorts, filters, zooms, fetches
# nothing. What is clicked lies where a profile made by hand puts it, whatever a real run measured.
import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
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
    done = run(programs / "lamina", "plan", "--model", "lenet", "--cluster", "cpu-1g", "--devices",
               "2", "--global-batch", "16", "--plan-out", "plan.json")
    expect("status of a plan", done.returncode, 0)
    for name, batch, plan in (("one", 4, "data"), ("two", 8, "plan.json")):
        done = run("mpirun", "-n", "2", programs / "bench_network", "--model", "lenet",
                   "--batch-size", batch, "--warmup", "2", "--iters", "4", "--plan", plan,
                   "--report", name)
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
    before = contents(root / "both")
    done = run(programs / "lamina", "report", "both/before.json", "--report", "both")
    expect("status where a profile would be lost", done.returncode, 1)
    expect("it says so", "both/before.json lies in --report both, and would be lost" in done.stderr)
    expect("nothing is lost", contents(root / "both"), before)


def train_recorded():
    """Recorded steps are steps: no evaluation, and no checkpoint."""
    line = [programs / "lamina", "train", "--model", "lenet", "--batch-size", "4", "--limit", "400",
            "--ceilings", "none", "--threads", "1", "--json", "trained.json"]
    done = run(*line, "--steps", "8")
    expect("status of a short training", done.returncode, 0)
    timeline = json.loads((root / "trained.json").read_text())["timeline"]
    where = timeline["columns"].index("pass")
    passes = {span[where] for rank in timeline["ranks"] for span in rank}
    expect("the last step has all passes", len(passes) > 2)
    (root / "trained.json").unlink()
    done = run(*line, "--steps", "20", "--save", "saved", "--save-every", "1", "--no-validation")
    expect("nothing is recorded between checkpoints",
           "no per-layer table, and no file of it: a checkpoint came before" in done.stdout)
    expect("no file", (root / "trained.json").exists(), False)


def make_crowded():
    """A report with more rows than are shown at once, whose dots cover each other: times that
    depend on nothing that was measured, copies that lie on the same point, and small ones within
    large ones."""
    p = json.loads((root / "one/profile.json").read_text())
    rows = p["rows"]

    def take(row, seconds):
        row["exposed_s"] = {"min": 0, "mean": 0, "max": 0, "slowest": 0}
        row["time_s"] = {"min": seconds, "mean": seconds, "max": seconds, "slowest": 0}

    for i, row in enumerate(rows):
        take(row, 1e-5 * (1 + i * 7 % 5))
    for copy in range(1, 4):  # the last one is a thousandth of all: within the first ones' dots
        part = 1 if copy < 3 else 1e-3
        for row in rows[:len(rows) if copy == 1 else 12]:
            same = {**row, "layer": f"copy{copy}.{row['layer']}"}
            if same["layer"] not in p["layers"]:
                p["layers"].append(same["layer"])
            same["index"] = p["layers"].index(same["layer"])
            same["flop"], same["bytes"] = row["flop"] * part, row["bytes"] * part
            take(same, row["time_s"]["mean"] * part)
            p["rows"].append(same)
        if copy == 1:
            rows = list(p["rows"])
    (root / "crowded.json").write_text(json.dumps(p))
    for row in p["rows"][::2]:
        take(row, 1.3 * row["time_s"]["mean"])
    (root / "later.json").write_text(json.dumps(p))
    for words in (["crowded.json", "--report", "crowded"],
                  ["crowded.json", "later.json", "--report", "pair"]):
        expect("status of a crowded report", run(programs / "lamina", "report", *words).returncode,
               0)
    return p


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

    def until(self, script, *arguments):
        """Waits for what the browser does in the background; whether it did is asked afterwards."""
        for _ in range(200):
            if self.js(script, *arguments):
                return
            time.sleep(0.05)

    def find(self, selector):
        return self.call("/element", {"using": "css selector", "value": selector})

    def click(self, element):
        if isinstance(element, str):
            element = self.find(element)
        self.js("arguments[0].scrollIntoView({block: 'center'})", element)  # not under the contents
        self.call(f"/element/{next(iter(element.values()))}/click", {})

    def keys(self, element, text):
        if isinstance(element, str):
            element = self.find(element)
        self.call(f"/element/{next(iter(element.values()))}/value", {"text": text})

    def act(self, *sources):
        self.call("/actions", {"actions": list(sources)})

    def click_at(self, x, y):
        """Where a person would click, whatever lies there."""
        self.act(self.pointer({"type": "pointerMove", "x": round(x), "y": round(y)},
                              {"type": "pointerDown", "button": 0},
                              {"type": "pointerUp", "button": 0}))

    @staticmethod
    def pointer(*actions):
        return {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"},
                "actions": list(actions)}

    @staticmethod
    def wheel(x, y, dx, dy):
        return {"type": "wheel", "id": "wheel", "actions": [
            {"type": "scroll", "x": round(x), "y": round(y), "deltaX": dx, "deltaY": dy}]}

    def press(self, *keys):
        self.act({"type": "key", "id": "keys", "actions": [
            {"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]})

    def log(self, kind):
        return self.call("/se/log", {"type": kind})

    def close(self):
        self.call("", method="DELETE")
        self.driver.terminate()
        self.driver.wait()


# All dots, each with the point in its middle, and which rows' dots lie there, computed from their
# shapes alone.
POINTS = """
  const svg = document.querySelector('#roofline svg');
  svg.scrollIntoView({block: 'center'});
  const dots = [...svg.querySelectorAll('[data-row], [data-before]')];
  const name = (dot) => dot.dataset.row !== undefined ? `row=${dot.dataset.row}`
                                                      : `before=${dot.dataset.before}`;
  return dots.map((dot) => {
    const to = dot.getScreenCTM();
    const at = new DOMPoint(0, 0).matrixTransform(to);
    const x = Math.round(at.x), y = Math.round(at.y);  // pointers have whole coordinates
    return {name: name(dot), x, y, here: dots.filter((other) => {
      const point = new DOMPoint(x, y).matrixTransform(other.getScreenCTM().inverse());
      return other.isPointInFill(point) || other.isPointInStroke(point);
    }).map(name)};
  });"""
LISTED = """
  const list = document.getElementById('pick');
  return list.hidden ? [] : [...list.querySelectorAll('button')].map((b) => b.textContent);"""
# What the row of each dot says of itself.
ROW_NAMES = """
  const names = {};
  for (const row of document.querySelectorAll('#rows tbody.passes tr'))
    for (const key of ['row', 'before'])
      if (row.dataset[key] !== undefined)
        names[`${key}=${row.dataset[key]}`] = [row.querySelector('b').textContent,
                                               row.cells[1].textContent];
  return names;"""
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


def reachable(browser, name, every=1):
    """Every dot can be had by a click in its middle: at once where it lies alone, and from a list
    where others lie there, too. Returns how many were in the longest list."""
    most, names = 0, browser.js(ROW_NAMES)
    for point in browser.js(POINTS)[::every]:
        browser.click_at(point["x"], point["y"])
        rows = {tuple(names[dot]) for dot in point["here"]}  # before and after lead to one
        layer, what = names[point["name"]]
        listed = browser.js(LISTED)
        most = max(most, len(listed))
        expect(f"{name}: {layer} {what}: entries where {len(rows)} rows have dots", len(listed),
               len(rows) if len(rows) > 1 else 0)
        if listed:
            fitting = [i for i, words in enumerate(listed)
                       if words.startswith(layer + " ") and f", {what}" in words]
            expect(f"{name}: {layer} {what} is listed once: {listed}", len(fitting), 1)
            browser.click(browser.js("return document.querySelectorAll('#pick button')"
                                     "[arguments[0]]", fitting[0]))
        alone = f"{name}: the row of {layer} {what} alone is marked, and seen, and no list"
        expect(alone, browser.js("""
          const marked = [...document.querySelectorAll('#rows tr.selected')];
          const seen = marked[0]?.getClientRects().length > 0;
          document.querySelector('#roofline svg').scrollIntoView({block: 'center'});
          return marked.length === 1 && marked[0].matches(`[data-${arguments[0]}]`) && seen &&
              document.getElementById('pick').hidden;""",
            '{}="{}"'.format(*point["name"].split("="))))
    return most


def keyboard(browser):
    """The arrow keys come by every dot, covered or not, and Enter takes the one that has the
    focus; Escape leaves the list."""
    browser.js("document.querySelector('#roofline svg [data-row][tabindex=\"0\"]').focus()")
    focus = "return document.activeElement.dataset.row"
    met = [browser.js(focus)]
    total = browser.js("return document.querySelectorAll('#roofline svg [data-row]').length")
    for _ in range(total - 1):
        browser.press("\ue014")
        met.append(browser.js(focus))
    expect("the arrow keys meet every dot once", len(set(met)), total)
    browser.press("\ue007")
    expect("Enter takes the one that they stand on", browser.js(SELECTED, DOTS), [met[-1]])
    expect("and marks its row", browser.js(SELECTED, ROWS), [met[-1]])

    crowd = max(browser.js(POINTS), key=lambda point: len(point["here"]))
    browser.click_at(crowd["x"], crowd["y"])
    expect("the list has the focus",
           browser.js("return document.activeElement.closest('#pick') !== null"))
    browser.press("\ue015")
    expect("the arrow keys move in it", browser.js("""
      const list = [...document.querySelectorAll('#pick button')];
      return [list.indexOf(document.activeElement), list.length >= 4];"""), [1, True])
    near = "return [...document.querySelectorAll('#rows tr.near')].map((row) => row.dataset.row)"
    expect("and show the row that is meant", len(browser.js(near)), 1)
    browser.press("\ue00c")
    expect("Escape closes it", browser.js(LISTED), [])
    browser.click_at(crowd["x"], crowd["y"])
    browser.click_at(5, crowd["y"])
    expect("and so does a click elsewhere", browser.js(LISTED), [])


def selection(browser):
    number, other = browser.js("""
      return [...document.querySelectorAll(arguments[0])].slice(0, 2).map((d) => d.dataset.row);
      """, DOTS)
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


SHOWN = """
  return [...document.querySelectorAll('#rows tbody.passes tr')]
      .filter((row) => row.getClientRects().length > 0).map((row) => row.dataset.row);"""


def folding(browser, total):
    browser.js("document.querySelector(arguments[0]).focus()", ROWS)
    browser.press("\ue00c")  # what is selected is shown, folded or not
    label = "label[for=all-rows]"
    expect("60 rows are shown", len(browser.js(SHOWN)), 60)
    folded = browser.js("return document.querySelector(arguments[0]).textContent", label)
    expect("and how many are not", folded, f"{total - 60} more rows")
    first = browser.js(SHOWN)
    browser.click(browser.js(HEAD, "layer"))
    expect("sorting shows 60 others", len(browser.js(SHOWN)) == 60 and browser.js(SHOWN) != first)
    browser.click(label)
    expect("a click shows all", len(browser.js(SHOWN)), total)
    browser.click(label)
    expect("another one folds them", len(browser.js(SHOWN)), 60)
    browser.js("document.querySelector('#all-rows').focus()")
    browser.press(" ")
    expect("so does a key", len(browser.js(SHOWN)), total)
    browser.press(" ")
    browser.keys("#filter", "copy3")
    expect("what is filtered is counted anew", len(browser.js(SHOWN)), 12)
    expect("and nothing is folded then", browser.js(
        "return document.querySelector(arguments[0]).hidden", label))


def contents_of_page(browser, name):
    links = browser.js("return [...document.querySelectorAll('nav a')].map((a) => a.textContent)")
    expect(f"{name}: every section is in the contents", links, browser.js(
        "return [...document.querySelectorAll('main h2')].map((h) => h.textContent)"))
    for i in (len(links) - 1, 2, 1):
        browser.click(browser.js("return document.querySelectorAll('nav a')[arguments[0]]", i))
        expect(f"{name}: {links[i]} is in sight, below the contents", browser.js("""
          const link = document.querySelectorAll('nav a')[arguments[0]];
          const head = document.querySelector(link.getAttribute('href') + ' h2')
              .getBoundingClientRect();
          const nav = document.querySelector('nav').getBoundingClientRect();
          return nav.top >= 0 && head.top >= nav.bottom && head.bottom <= innerHeight;""", i))


def nothing_cut_off(browser, what):
    expect(f"{what}: nothing sticks out", browser.js(
        "return document.documentElement.scrollWidth <= innerWidth"))
    expect(f"{what}: words that a drawing cuts off", browser.js("""
      return [...document.querySelectorAll('svg text')].filter((words) => {
        const box = words.getBoundingClientRect();
        const all = words.ownerSVGElement.getBoundingClientRect();
        return box.width > 0 && (box.left < all.left - 1 || box.right > all.right + 1 ||
                                 box.top < all.top - 1 || box.bottom > all.bottom + 1);
      }).map((words) => words.textContent);"""), [])


# The timeline as it is seen: where ticks lie, and each span with its begin and end as its place
# says by the ticks, in ms. Spans that go on beyond the drawing are left out.
TIMELINE = """
  const svg = document.querySelector('svg.timeline');
  const seen = (e) => e.getClientRects().length > 0;
  const ticks = [...svg.querySelectorAll('.tick.middle')].filter(seen).map((t) => [
      parseFloat(t.getAttribute('x')), parseFloat(t.textContent)]);
  const [x0, t0] = ticks[0], [x1, t1] = ticks.at(-1), lane = svg.querySelector('.lane');
  const left = parseFloat(lane.getAttribute('x')), wide = parseFloat(lane.getAttribute('width'));
  const time = (x) => t0 + (x - x0) / (x1 - x0) * (t1 - t0);
  const spans = [...svg.querySelectorAll('[data-rank="0"] .span')].filter(seen).map((span) => {
    const x = parseFloat(span.getAttribute('x')), w = parseFloat(span.getAttribute('width'));
    return {begin: time(x), end: time(x + w), layer: span.dataset.layer, inside: x > left + 0.1 &&
            x + w < left + wide - 0.1, whole: w > 0.31 && span.dataset.parts === undefined};
  });
  const heights = [...svg.querySelectorAll('text')].filter(seen)
      .map((t) => Math.round(parseFloat(getComputedStyle(t).fontSize) * 10) / 10);
  const box = svg.getBoundingClientRect();
  return {from: time(left), to: time(left + wide), spans, pixel: (time(left + wide) - time(left)) /
          wide, sizes: [...new Set(heights)].sort(), scale: svg.getScreenCTM().a,
          x: box.x + box.width / 2, y: box.y + box.height / 2,
          words: svg.closest('figure').querySelector('output').textContent};"""


def timeline(browser, profile):
    def look(what):
        view = browser.js(TIMELINE)
        known = [(1e3 * s[4], 1e3 * s[5], str(s[0])) for s in profile["timeline"]["ranks"][0]]
        astray = [s for s in view["spans"] if s["inside"] and s["whole"] and not any(
            abs(s["begin"] - b) < view["pixel"] and abs(s["end"] - e) < view["pixel"]
            and s["layer"] == layer for b, e, layer in known)]
        expect(f"{what}: spans that are not where the profile has them", astray[:3], [])
        # Of a process that others interrupted, a part of the step may have none.
        due = any(min(e, view["to"]) - max(b, view["from"]) > view["pixel"] for b, e, _ in known)
        expect(f"{what}: there are spans where the profile has them",
               len(view["spans"]) > 0 or not due)
        return view

    browser.js("document.querySelector('#timeline').scrollIntoView()")
    whole = look("the whole step")
    expect("the whole step has spans", len(whole["spans"]) > 0)
    start = """return [...document.querySelectorAll('svg.timeline .span')].map(
        (s) => [s.getAttribute('x'), s.getAttribute('width'), s.style.display].join(' '));"""
    marked = browser.js(SELECTED, ROWS)
    before = browser.js(start)
    parts = "return document.querySelectorAll('svg.timeline .span').length"
    for _ in range(5):
        browser.click("#timeline button[aria-label='zoom in']")
    near = look("zoomed in")
    expect("a part of the step is shown", (near["to"] - near["from"]) * 32 ==
           approximately(whole["to"] - whole["from"]))
    expect("it says which", near["words"] != whole["words"])
    expect("words are as large as before", (near["sizes"], near["scale"]),
           (whole["sizes"], whole["scale"]))
    nothing_cut_off(browser, "the timeline zoomed in")

    # Dragging moves it, and selects nothing.
    browser.act(browser.pointer({"type": "pointerMove", "x": round(near["x"]),
                                 "y": round(near["y"]) - 20},
                                {"type": "pointerDown", "button": 0},
                                {"type": "pointerMove", "x": round(near["x"]) - 150,
                                 "y": round(near["y"]) - 20, "duration": 20},
                                {"type": "pointerUp", "button": 0}))
    moved = look("dragged")
    expect("what is dragged follows", (moved["from"] - near["from"]) / near["pixel"] ==
           approximately(150 / near["scale"]))
    expect("and selects nothing", browser.js(SELECTED, ROWS), marked)

    # The wheel scrolls the page until the timeline has the focus or Ctrl is down.
    browser.js("document.activeElement.blur()")
    at = browser.js("return scrollY")
    browser.act(browser.wheel(near["x"], near["y"], 0, -40))
    browser.until("return scrollY !== arguments[0]", at)  # wheels turn in the background
    expect("the wheel alone zooms nothing", look("scrolled")["words"], moved["words"])
    browser.js("document.querySelector('#timeline').scrollIntoView();"
               "document.querySelector('svg.timeline').focus({preventScroll: true})")
    browser.press("0")
    expect("0 shows the whole step", browser.js(TIMELINE)["words"], whole["words"])
    expect("as it was", browser.js(start) == before)
    there = browser.js(TIMELINE)
    browser.act(browser.wheel(there["x"], there["y"], 0, -300))
    browser.until("return document.querySelector('#timeline output').textContent !== arguments[0]",
                  whole["words"])
    wheeled = look("wheeled")
    middle = 0.5 * (whole["from"] + whole["to"])
    expect("the wheel zooms", wheeled["to"] - wheeled["from"] < 0.5 * (whole["to"] - whole["from"]))
    expect("around the pointer", wheeled["from"] < middle < wheeled["to"])
    browser.press("\ue014")
    expect("an arrow key moves", look("moved by a key")["from"] > wheeled["from"])
    browser.press("+", "+", "+", "+")
    browser.press("-")
    closer = look("zoomed by keys")
    expect("keys zoom", (closer["to"] - closer["from"]) * 8 == approximately(
        wheeled["to"] - wheeled["from"]))
    browser.click("#timeline button[aria-label='show the whole step']")
    expect("a button shows the whole step", browser.js(TIMELINE)["words"], whole["words"])
    expect("and all is as it was", browser.js(start) == before)
    expect("no part is left", browser.js(parts), len(before))


class approximately:
    """Equal within a per mille."""
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return abs(self.value - other) <= 1e-3 * abs(self.value)


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


def differences(browser):
    size = [abs(float(v)) for v in browser.js(COLUMN, "difference µs")["values"]]
    none = [v == "none" for v in browser.js(COLUMN, "change")["values"]]
    expect("what changed comes first", none, sorted(none))
    for kind in (False, True):
        of_kind = [v for v, n in zip(size, none) if n == kind]
        expect("the largest difference first", of_kind, sorted(of_kind, reverse=True))
    whole = browser.js("return document.querySelector('#table .small').textContent")
    for part in ("step", "kernels", "unaccounted"):
        expect(f"{part} is compared", part in whole)


def planned(browser):
    """The page has the step as the plan predicted it."""
    profile = json.loads((root / "two/profile.json").read_text())
    predicted = json.loads((root / "plan.json").read_text())["prediction"]["step_s"]
    expect("the profile has the plan's step", profile["plan"]["predicted_s"], predicted)
    step = browser.js("""
      const rows = [...document.querySelectorAll('#plan table:first-of-type tr')];
      return [...rows.at(-1).cells].map((cell) => cell.textContent);""")
    measured = profile["clean_s"]["mean"] * 1e3
    expect("the step, measured and predicted", step,
           ["a step", f"{measured:.3f}", f"{predicted * 1e3:.3f}",
            f"{100 * (predicted * 1e3 / measured - 1):+.1f}"])


def without_script(browser, total):
    """The page as a reader has it whose browser runs no scripts."""
    page = (root / "crowded/index.html").read_text()
    expect("there is one script", page.count("<script>"), 1)
    (root / "still.html").write_text(page.replace("<script>", "<script type='text/plain'>"))
    browser.open(root / "still.html")
    expect("no control is shown that does nothing", browser.js("""
      return [...document.querySelectorAll('button, input')].filter((e) => e.closest('th') === null
          && e.id !== 'all-rows' && e.getClientRects().length > 0).length;"""), 0)
    expect("60 rows are shown without a script", len(browser.js(SHOWN)), 60)
    browser.click("label[for=all-rows]")
    expect("and all after a click", len(browser.js(SHOWN)), total)
    nothing_cut_off(browser, "the page without a script")


def pages(crowded):
    for width in (1280, 1920):
        browser = Browser(width)
        try:
            for name in ("one", "two", "both", "crowded", "pair"):
                browser.open(root / name / "index.html")
                nothing_cut_off(browser, f"{name} at {width}")
                contents_of_page(browser, name)
                if name == "two":
                    planned(browser)
                if name == "one":
                    selection(browser)
                    timeline(browser, json.loads((root / "one/profile.json").read_text()))
                if name == "one" and width == 1280:
                    sorting(browser)
                    filtering(browser)
                    theme(browser)
                if name == "crowded" and width == 1280:
                    expect("many dots lie on one point", reachable(browser, name) >= 4)
                    keyboard(browser)
                    folding(browser, len(crowded["rows"]))
                if name in ("both", "pair"):
                    differences(browser)
                if name == "pair" and width == 1280:
                    reachable(browser, name, every=9)
                silence(browser, name)
            if width == 1280:
                without_script(browser, len(crowded["rows"]))
        finally:
            browser.close()


try:
    make_reports()
    train_recorded()
    crowded = make_crowded()
    bad_input()
    browsers = shutil.which("chromedriver") and (shutil.which("chromium") or
                                                 shutil.which("google-chrome"))
    if browsers:
        pages(crowded)
    elif failures == 0:
        print("skipped: the page was not opened, as chromium and chromedriver are not installed "
              "(Debian: chromium-driver)")
        sys.exit(SKIPPED)
finally:
    shutil.rmtree(root, ignore_errors=True)
sys.exit(1 if failures else 0)
