#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The live page in headless Chromium, and `ballast top`, while a job trains and after it has ended.

usage: page_test.py BALLAST SERVER WORKER   (PAGE_TEST_PICTURES=DIR keeps screenshots there)
"""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "testing"))
import browser  # noqa: E402

BALLAST, SERVER, WORKER = (os.path.abspath(path) for path in sys.argv[1:4])
FOLDER = pathlib.Path(os.environ.get("TEST_TMPDIR", "/tmp"), "page")
PICTURES = os.environ.get("PAGE_TEST_PICTURES")
LIMIT_SECONDS = 60
# A task of that length or longer delays a frame so that a person sees it.
LONG_TASK_MS = 50
PASSES = 3

JOB = """name: "digits"
data { train { csv { path: "data.csv" label_column: -1 } } test { csv { path: "data.csv" label_column: -1 } } }
model { layers { dense { units: 64 } } layers { relu {} } layers { dense { units: 2 } } loss { softmax_cross_entropy {} } }
training { epochs: 100000 batch_size: 10 }
optimizer { sgd { learning_rate: 0.01 } }
"""
# Panels that have data in this job whatever the machine does.
FILLED = ["job", "loss", "speed", "time", "staleness", "traffic", "links", "flight", "waits", "memory", "load", "discarded"]
# Ids of the panels that show data, among those in view or not.
SHOWN = """panels.filter(panel => panel.spec.kind === 'stat' ? panel.body.childElementCount > 0 :
    panel.charts.some(chart => hasData(panel, chart))).map(panel => panel.spec.id)"""


def wait_for(what, condition, seconds=LIMIT_SECONDS):
    """Returns the condition's first true value."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"timed out after {seconds} s waiting for {what}")


def get(url, headers=None):
    """Returns the status, the headers and the text of a page."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers or {}), timeout=10) as response:
            return response.status, response.headers, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


class PageTest(unittest.TestCase):
    def setUp(self):
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        (FOLDER / "job.textproto").write_text(JOB)
        (FOLDER / "data.csv").write_text("".join(f"{i % 2 * 2 - 1}.{i % 7},{i % 2}\n" for i in range(1000)))

    def start(self, *words):
        """Starts ballast, with its output in files."""
        out, err = (FOLDER / f"{len(list(FOLDER.glob('*.out')))}.{end}" for end in ("out", "err"))
        with open(out, "wb") as stdout, open(err, "wb") as stderr:
            process = subprocess.Popen([BALLAST, *map(str, words)], cwd=FOLDER, stdin=subprocess.DEVNULL, stdout=stdout,
                                       stderr=stderr)
        process.out, process.err = out, err
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        return process

    def ballast(self, *words):
        return subprocess.run([BALLAST, *map(str, words)], cwd=FOLDER, text=True, capture_output=True, timeout=120)

    def launch(self, run="run", *flags):
        process = self.start("launch", "job.textproto", "--servers", 2, "--workers", 2, "--threads", 1, "--run-dir", run,
                             *flags)
        wait_for("the first steps", lambda: (FOLDER / run / "metrics.jsonl").exists() or process.poll() is not None)
        self.assertIsNone(process.poll(), process.err.read_text())
        return process

    def page(self, *words):
        """Starts a page, and returns its process and its address."""
        process = self.start("page", *words)
        wait_for("the page's address", lambda: "\n" in process.out.read_text() or process.poll() is not None)
        self.assertIsNone(process.poll(), process.err.read_text())
        return process, process.out.read_text().strip()

    def end(self, process, number=signal.SIGINT):
        process.send_signal(number)
        return process.wait(timeout=LIMIT_SECONDS)

    def open_browser(self):
        if browser.find() is None:
            self.skipTest("chromium is not installed")
        page = browser.Browser(str(FOLDER))
        self.addCleanup(page.close)
        return page

    def scroll_through(self, page):
        for distance in [240] * 12 + [-240] * 12:
            page.scroll(600, 500, distance)
            page.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def picture(self, page, name):
        if PICTURES:
            os.makedirs(PICTURES, exist_ok=True)
            page.screenshot(os.path.join(PICTURES, name + ".png"))

    def test_shows_a_run_in_every_size_and_color(self):
        launch = self.launch("run", "--page")
        url = wait_for("the page's address",
                       lambda: next((line[6:] for line in launch.err.read_text().splitlines() if line.startswith("page: ")), None))
        page = self.open_browser()
        page.resize(1280, 900)
        page.prefer("dark")
        page.open(url)
        page.wait_for("the panels", "document.querySelectorAll('.panel').length === 20")
        titles = page.run("[...document.querySelectorAll('.panel h2')].map(title => title.textContent)")
        panels = json.loads(page.run("document.getElementById('panel-list').textContent"))
        self.assertEqual(titles, [panel["title"] for panel in panels])
        page.wait_for(f"data in {FILLED}", f"(shown => {json.dumps(FILLED)}.every(id => shown.includes(id)))({SHOWN})")
        shown = page.run(SHOWN)
        print("panels with data:", ", ".join(shown))
        page.wait_for("a line", "document.querySelector('#panel-loss .legend b')?.textContent > '0'")
        page.wait_for("the state", "document.querySelector('.pill').textContent === 'running'")
        self.assertRegex(page.run("document.getElementById('strip').textContent"), r"digits *running *epoch [\d,]+/100,000")
        # The figures move.
        step = page.run("runs[0].head.step")
        page.wait_for("further steps", f"runs[0].head.step > {step}")

        for scheme in ("dark", "light"):
            page.prefer(scheme)
            ground = {"dark": "rgb(13, 17, 23)", "light": "rgb(243, 245, 248)"}[scheme]
            page.wait_for(f"{scheme} colors", f"getComputedStyle(document.body).backgroundColor === '{ground}'")
            for width, height in ((360, 740), (1280, 900), (2560, 1300)):
                page.resize(width, height, phone=width < 500)
                page.run("new Promise(done => setTimeout(done, 300))")
                self.assertLessEqual(page.run("document.documentElement.scrollWidth"), width, f"{width} px overflows")
                outside = page.run("[...document.querySelectorAll('.panel')].filter(panel => panel.scrollWidth > panel.clientWidth + 1).map(panel => panel.id)")
                self.assertEqual(outside, [], f"at {width} px")
                self.picture(page, f"{scheme}-{width}")
        page.run("document.getElementById('theme').click()")
        self.assertEqual(page.run("getComputedStyle(document.body).backgroundColor"), "rgb(13, 17, 23)")

        # Scrolling leaves the main thread free.
        page.resize(1280, 900)
        self.assertGreater(page.run("document.documentElement.scrollHeight"), 1800)
        longest = []
        for _ in range(PASSES):
            tasks = page.tasks_of(lambda: self.scroll_through(page))
            self.assertTrue(tasks)
            longest.append(max(cpu for _, cpu in tasks))
            print(f"longest task while scrolling: {max(wall for wall, _ in tasks):.0f} ms, {longest[-1]:.0f} ms of them on a processor")
        # Time that other processes take from this one does not count for the page.
        self.assertLess(max(longest), LONG_TASK_MS)

        # Values under the pointer, by keyboard, and as a table.
        page.run("document.querySelector('#panel-time').scrollIntoView({block: 'center'})")
        rect = page.run("(({left, top, width, height}) => ({x: left + width / 2, y: top + height / 2}))(document.querySelector('#panel-time canvas').getBoundingClientRect())")
        page.run("new Promise(done => setTimeout(done, 300))")
        page.move(rect["x"], rect["y"])
        page.wait_for("the values", "!document.getElementById('tip').hidden")
        self.assertRegex(page.run("document.getElementById('tip').textContent"), r"after the start.*compute.*%")
        page.move(1, 1)
        page.wait_for("no values", "document.getElementById('tip').hidden")
        page.run("document.querySelector('#panel-time canvas').focus()")
        page.press("ArrowLeft")
        self.assertFalse(page.run("document.getElementById('tip').hidden"))
        page.press("t")
        page.wait_for("the table", "document.querySelectorAll('#panel-time tbody tr').length > 1")

        # The run ends, and its page with it; the browser says so.
        self.assertEqual(self.end(launch), 130, launch.err.read_text())
        page.wait_for("the warning", "document.querySelector('#banner .bad')?.textContent.includes('does not answer')")
        failed = [problem for problem in page.problems if "ERR_CONNECTION_REFUSED" not in problem]
        self.assertEqual(failed, [])

    def test_shows_a_run_that_ends_and_one_that_has_ended(self):
        launch = self.launch()
        _, url = self.page("run")
        page = self.open_browser()
        page.open(url)
        page.wait_for("data", f"{SHOWN}.includes('memory')")
        self.assertEqual(self.end(launch), 130, launch.err.read_text())
        page.wait_for("the end", "document.querySelector('.pill').textContent === 'interrupted'")
        page.wait_for("its banner", "document.querySelector('#banner .calm')?.textContent.includes('The run has ended')")
        self.assertIn("memory", page.run(SHOWN))
        # Another page shows what this one has recorded.
        wait_for("the record", (FOLDER / "run" / "page_history.json").exists)
        self.assertLess((FOLDER / "run" / "page_history.json").stat().st_size, 4 << 20)
        _, again = self.page("run", "--json")
        page.open(json.loads(again)["url"])
        page.wait_for("recorded panels", f"(shown => ['loss', 'memory', 'time'].every(id => shown.includes(id)))({SHOWN})")
        # Without a record, the other panels say why they are empty.
        shutil.copytree(FOLDER / "run", FOLDER / "copy")
        (FOLDER / "copy" / "page_history.json").unlink()
        _, bare = self.page("copy")
        page.open(bare)
        page.wait_for("the loss", f"{SHOWN}.includes('loss')")
        page.run("document.querySelector('#panel-memory').scrollIntoView()")
        page.wait_for("the reason", "document.querySelector('#panel-memory .empty').textContent === 'The run has ended, and nothing of this was recorded while it ran.'")
        # Two runs over each other.
        _, both = self.page("run", "copy")
        page.open(both)
        page.wait_for("both runs", "runs.length === 2 && runs.every(run => run.loaded)")
        page.wait_for("lines of both", "[...document.querySelectorAll('#panel-loss .legend span')].some(name => name.textContent.startsWith('copy '))")
        self.picture(page, "two-runs")
        self.assertEqual(page.problems, [])

    def test_only_the_whole_address_opens_it(self):
        (FOLDER / "run").mkdir()
        (FOLDER / "run" / "metrics.jsonl").write_text('{"kind":"train"')
        page, url = self.page("run")
        host = url.split("/?")[0]
        status, _, text = get(host + "/")
        self.assertEqual(status, 403)
        self.assertIn("?token=", text)
        status, headers, text = get(url)
        self.assertEqual(status, 200)
        self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
        self.assertEqual(get(host + "/history?run=0")[0], 403)
        self.assertEqual(get(url, {"Host": "evil.example"})[0], 403)
        # The line that is cut off is not shown.
        token = url.split("token=")[1]
        self.assertIn('"lines":[]', get(f"{host}/history?run=0", {"Authorization": f"Bearer {token}"})[2])
        port = host.rsplit(":", 1)[1]
        taken = self.ballast("page", "run", "--port", port)
        self.assertEqual(taken.returncode, 2)
        self.assertIn(f"error: --port: HTTP address: got 127.0.0.1:{port}, want one that is free", taken.stderr)
        self.assertEqual(self.end(page), 0)

    def test_refuses_what_it_cannot_show(self):
        with socket.create_server(("127.0.0.1", 0)) as closed:
            nobody = f"127.0.0.1:{closed.getsockname()[1]}"
        (FOLDER / "empty").mkdir()
        for command in ("page", "top"):
            for words, status, message in [
                    (["empty"], 2, "run directory empty: has none of launch.json, job.textproto, metrics.jsonl"),
                    (["nothing"], 2, f'{command}: got "nothing", want a run directory or an address, host:port'),
                    ([nobody], 1, f"cannot reach a server at {nobody}"),
                    (["--prot", "1"], 2, "unknown flag --prot")]:
                with self.subTest(command=command, words=words):
                    done = self.ballast(command, *words)
                    self.assertEqual(done.returncode, status, done.stderr)
                    self.assertIn(message, done.stderr)
        self.assertEqual(self.ballast("page", "--port", "70000").returncode, 2)
        self.assertEqual(self.ballast("top", "a", "b").returncode, 2)

    def test_top_shows_the_same_figures(self):
        launch = self.launch()
        done = self.ballast("top", "run", "--once")
        self.assertEqual(done.returncode, 0, done.stderr)
        for line in (r"digits  running  sync .* step [\d,]+", r"\n 2 Loss and accuracy: loss +train loss \S+",
                     r"\n 3 .*all workers [\d,.]+ examples/s", r"\n 4 Time of the workers +compute \S+%",
                     r"\n 9 Traffic: bytes per second +", r"\n20 Model"):
            self.assertRegex(done.stdout, line)
        answer = json.loads(self.ballast("top", "run", "--once", "--json").stdout)
        self.assertEqual(answer["run"]["state"], "running")
        panels = {figure["panel"] for figure in answer["figures"]}
        self.assertLessEqual(set(FILLED) - {"job"}, panels)
        # From a server's address alone: the same commands, without what only the other processes know.
        address = (FOLDER / "run" / "logs" / "server-0.control").read_text().strip()
        done = self.ballast("top", address, "--run", "run", "--once", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        answer = json.loads(done.stdout)
        self.assertEqual(answer["run"]["job"], "digits")
        self.assertLessEqual({"loss", "speed", "time", "traffic", "flight", "load"},
                             {figure["panel"] for figure in answer["figures"]})
        self.end(launch)
        done = self.ballast("top", "run")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("the run has ended", done.stdout)
        self.assertRegex(done.stdout, r"train loss \S+")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
