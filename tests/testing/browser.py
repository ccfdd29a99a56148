# SPDX-License-Identifier: Apache-2.0
"""Drives headless Chromium by the DevTools protocol, over a pipe: no port, no library."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

LIMIT_SECONDS = 60


def find():
    """Returns Chromium's path; None if it is not installed."""
    return next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


class Browser:
    """One page of a browser of its own. `problems` collects console errors and uncaught exceptions."""

    def __init__(self, folder):
        self.problems = []
        self._next, self._answers, self._buffer = 1, {}, b""
        self._trace, self._traced = [], False
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # Chromium reads file descriptor 3 and writes 4.
        home = tempfile.mkdtemp(dir=folder)
        command = [find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                   "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
                   f"--user-data-dir={home}", "--remote-debugging-pipe", "about:blank"]
        with open(os.path.join(folder, "chromium.log"), "ab") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f'exec 3<&{to_browser} 4>&{from_browser}; exec "$@"', "sh", *command],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(to_browser, from_browser),
                env={**os.environ, "HOME": home})
        os.close(to_browser)
        os.close(from_browser)
        target = self._call("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self._call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def close(self):
        os.close(self._write)
        os.close(self._read)
        self._process.terminate()
        self._process.wait(timeout=LIMIT_SECONDS)

    def _call(self, method, parameters=None):
        number, self._next = self._next, self._next + 1
        message = {"id": number, "method": method, "params": parameters or {}}
        if getattr(self, "_session", None):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + LIMIT_SECONDS
        while number not in self._answers:
            self._receive(deadline)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        return answer["result"]

    def _receive(self, deadline):
        ready, _, _ = select.select([self._read], [], [], max(0, deadline - time.monotonic()))
        data = os.read(self._read, 1 << 20) if ready else b""
        if not data:
            raise AssertionError(f"the browser has not answered within {LIMIT_SECONDS} s, or has ended")
        *messages, self._buffer = (self._buffer + data).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self._answers[message["id"]] = message
                continue
            parameters = message.get("params", {})
            if message["method"] == "Tracing.dataCollected":
                self._trace += parameters["value"]
            elif message["method"] == "Tracing.tracingComplete":
                self._traced = True
            elif message["method"] == "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                self.problems.append(details.get("exception", {}).get("description") or details["text"])
            elif message["method"] == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "assert"):
                self.problems.append(str(parameters["args"]))
            elif message["method"] == "Log.entryAdded" and parameters["entry"]["level"] == "error":
                self.problems.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")

    def resize(self, width, height, ratio=1, phone=False):
        self._call("Emulation.setDeviceMetricsOverride",
                   {"width": width, "height": height, "deviceScaleFactor": ratio, "mobile": phone})

    def prefer(self, scheme):
        """dark or light."""
        self._call("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})

    def open(self, url):
        self._call("Page.navigate", {"url": url})

    def run(self, expression):
        """Returns the value of a JavaScript expression; a promise is awaited."""
        result = self._call("Runtime.evaluate",
                            {"expression": expression, "returnByValue": True, "awaitPromise": True})
        if "exceptionDetails" in result:
            raise AssertionError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait_for(self, what, expression, seconds=LIMIT_SECONDS):
        """Returns the expression's first true value."""
        deadline, problem = time.monotonic() + seconds, ""
        while time.monotonic() < deadline:
            try:
                value = self.run(expression)
                if value:
                    return value
            except AssertionError as error:
                # The page may still be loading.
                problem = f": {error}"
            time.sleep(0.05)
        raise AssertionError(f"timed out after {seconds} s waiting for {what}{problem}")

    def tasks_of(self, act):
        """Calls act(), and returns what the page's main thread did meanwhile: of each task, its duration and the
        processor time of the thread in it, in milliseconds."""
        self._trace, self._traced = [], False
        self._call("Tracing.start", {"transferMode": "ReportEvents", "traceConfig": {
            "includedCategories": ["toplevel", "__metadata"], "recordMode": "recordUntilFull"}})
        act()
        self._call("Tracing.end")
        deadline = time.monotonic() + LIMIT_SECONDS
        while not self._traced:
            self._receive(deadline)
        main = {(event["pid"], event["tid"]) for event in self._trace
                if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"}
        return [(event["dur"] / 1000, event.get("tdur", event["dur"]) / 1000) for event in self._trace
                if event["name"].endswith("RunTask") and event.get("ph") == "X" and (event["pid"], event["tid"]) in main]

    def scroll(self, x, y, distance):
        """Turns the wheel, as a person does."""
        self._call("Input.dispatchMouseEvent",
                   {"type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": distance})

    def move(self, x, y):
        self._call("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", {"type": kind, "key": key, "text": key if len(key) == 1 else ""})

    def screenshot(self, path, full=False):
        picture = self._call("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": full})
        with open(path, "wb") as file:
            file.write(base64.b64decode(picture["data"]))
