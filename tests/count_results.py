#!/usr/bin/python3
"""Adds up the results of `bazel test` runs, for tests/run.

Usage: count_results.py --keep EVENTS
       count_results.py NAME:EXIT_CODE:EVENTS...
where EVENTS is what --build_event_json_file wrote. The second prints each test that failed or was skipped, and as the
last line "N passed, N failed" with ", N skipped" when there were any. Exits with 1 when anything failed.

--keep, right after the run, copies the reports that EVENTS names to EVENTS.d/ and lets it name those: the next run
writes its own to the same place, whatever configuration it is of.

What counts is a GoogleTest case; a test of another kind counts as one. A target that does not build counts as one
failure, and so does a run that ends badly without saying where.
"""

import collections
import json
import os
import shutil
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree

Counts = collections.namedtuple("Counts", "passed failed skipped")

# Bazel's exit codes that are not failures: all well; no test was found.
_GOOD_EXITS = (0, 4)


def count_xml(text):
    """Returns (Counts, names of failed cases, (name, reason) of skipped ones) of one test.xml."""
    passed, failed, skipped = 0, [], []
    for case in ElementTree.fromstring(text).iter("testcase"):
        name = ".".join(filter(None, [case.get("classname"), case.get("name")]))
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif case.get("result") in ("skipped", "suppressed") or case.get("status") == "notrun":
            reason = case.find("skipped")
            skipped.append((name, "disabled" if reason is None else (reason.get("message") or "").strip()))
        else:
            passed += 1
    return Counts(passed, len(failed), len(skipped)), failed, skipped


class Run:
    """What one `bazel test` said, gathered from its events."""

    def __init__(self, name, exit_code):
        self.name = name
        self.exit_code = exit_code
        self.results = {}  # (label, run, shard) -> testResult of the last attempt, with its label
        self.broken = {}   # label -> what is wrong, for targets that did not build or load

    def on_event(self, event):
        identity = event.get("id", {})
        if "testResult" in event:
            key = identity["testResult"]
            self.results[key["label"], key.get("run"), key.get("shard")] = event["testResult"]
        elif "targetCompleted" in identity:
            label = identity["targetCompleted"]["label"]
            if "aborted" in event:
                self.broken[label] = event["aborted"].get("description") or "not built"
            elif not event.get("completed", {}).get("success", False):
                self.broken[label] = "does not build"
        elif "aborted" in event and "testSummary" not in identity:
            kind, key = next(iter(identity.items()))
            label = key.get("label") if isinstance(key, dict) else None
            reason = event["aborted"].get("reason", "")
            if label and reason not in ("NO_BUILD", "SKIPPED"):
                self.broken.setdefault(label, event["aborted"].get("description") or reason or kind)

    def report(self):
        """Prints what failed and what was skipped; returns the Counts of the run."""
        total = Counts(0, 0, 0)
        tested = set()
        for (label, _, _), result in sorted(self.results.items(), key=str):
            tested.add(label)
            total = _add(total, self._report_test(label, result))
        for label, reason in sorted(self.broken.items()):
            if label not in tested:
                print(f"FAILED [{self.name}] {label}: {reason.splitlines()[0]}")
                total = _add(total, Counts(0, 1, 0))
        if self.exit_code not in _GOOD_EXITS and total.failed == 0:
            print(f"FAILED [{self.name}] bazel ended with exit code {self.exit_code}")
            total = _add(total, Counts(0, 1, 0))
        return total

    def _report_test(self, label, result):
        status = result.get("status", "NO_STATUS")
        try:
            counts, failed, skipped = count_xml(_test_xml(result))
        except (OSError, ElementTree.ParseError, LookupError):
            # Nothing to count by: the test is one case.
            counts, failed, skipped = Counts(int(status == "PASSED"), 0, 0), [], []
        for name, reason in skipped:
            print(f"skipped [{self.name}] {label} {name}: {reason}")
        if status == "PASSED" and counts.failed == 0:
            return counts
        # A test that dies or times out may have written no failed case, or none at all.
        for name in failed or ["(%s)" % status.lower()]:
            print(f"FAILED [{self.name}] {label} {name}")
        return Counts(counts.passed, max(counts.failed, 1), counts.skipped)


def _test_xml(result):
    for output in _reports(result):
        with open(_path_of(output), encoding="utf-8", errors="replace") as xml:
            return xml.read()
    raise LookupError("no test.xml")


def _reports(result):
    return [output for output in result.get("testActionOutput", []) if output.get("name") == "test.xml"]


def _path_of(output):
    return urllib.parse.unquote(urllib.parse.urlparse(output["uri"]).path)


def keep(events_path):
    """Makes copies of the reports and lets the events name those."""
    if not os.path.exists(events_path):
        return
    folder = events_path + ".d"
    os.makedirs(folder)
    kept = []
    for event in _events(events_path):
        for number, output in enumerate(_reports(event.get("testResult", {}))):
            copy = os.path.join(folder, f"{len(kept)}.{number}.xml")
            try:
                shutil.copyfile(_path_of(output), copy)
            except OSError:
                pass  # it is found missing when it is counted
            output["uri"] = "file://" + urllib.parse.quote(copy)
        kept.append(json.dumps(event) + "\n")
    with open(events_path, "w", encoding="utf-8") as out:
        out.writelines(kept)


def _add(left, right):
    return Counts(*(a + b for a, b in zip(left, right)))


def load(argument):
    """Makes a Run of one NAME:EXIT_CODE:EVENTS."""
    name, exit_code, path = argument.split(":", 2)
    run = Run(name, int(exit_code))
    if os.path.exists(path):
        for event in _events(path):
            run.on_event(event)
    return run


def _events(path):
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                pass  # the last line of a Bazel that was killed


def main(arguments):
    if arguments[:1] == ["--keep"]:
        keep(arguments[1])
        return 0
    total = Counts(0, 0, 0)
    for argument in arguments:
        total = _add(total, load(argument).report())
    if not arguments:
        total = Counts(0, 1, 0)
    skipped = f", {total.skipped} skipped" if total.skipped else ""
    print(f"{total.passed} passed, {total.failed} failed{skipped}", flush=True)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
