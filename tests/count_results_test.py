#!/usr/bin/python3
"""Tests of count_results.py: a failure is never lost, whatever Bazel said about it."""

import contextlib
import io
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import count_results  # noqa: E402  (found beside this file)

GTEST = """<testsuites tests="4" failures="1" disabled="1" errors="0" name="AllTests"><testsuite name="Psn">
<testcase name="Wraps" classname="Psn" status="run" result="completed"/>
<testcase name="Orders" classname="Psn" status="run" result="completed"><failure message="x"/></testcase>
<testcase name="NeedsHca" classname="Psn" status="run" result="skipped"><skipped message="no HCA"/></testcase>
<testcase name="DISABLED_Slow" classname="Psn" status="notrun" result="suppressed"/>
</testsuite></testsuites>"""
SHELL_PASSED = '<testsuites><testsuite name="//t:s" tests="1"><testcase name="t/s" status="run"/></testsuite></testsuites>'
SHELL_FAILED = ('<testsuites><testsuite name="//t:s" tests="1"><testcase name="t/s" status="run">'
                '<error message="exited with error code 1"/></testcase></testsuite></testsuites>')


class CountResults(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def write(self, name, text):
        path = os.path.join(self.folder.name, name)
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
        return path

    def result(self, label, status, xml=None, attempt=1):
        outputs = []
        if xml is not None:
            path = self.write(f"{label.replace('/', '_')} {attempt}.xml", xml)
            outputs = [{"name": "test.xml", "uri": "file://" + path.replace(" ", "%20")}]
        return {"id": {"testResult": {"label": label, "run": 1, "attempt": attempt}},
                "testResult": {"status": status, "testActionOutput": outputs}}

    def count(self, exit_code, events, name="default"):
        """Returns (exit code, lines) of one run with the given events."""
        path = self.write(name + ".json", "".join(json.dumps(event) + "\n" for event in events))
        return self.main([f"{name}:{exit_code}:{path}"])

    def main(self, arguments):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = count_results.main(arguments)
        return code, printed.getvalue().splitlines()

    def test_every_case_of_googletest_counts(self):
        code, lines = self.count(3, [self.result("//t:psn", "FAILED", GTEST)])
        self.assertEqual(code, 1)
        self.assertEqual(lines[-1], "1 passed, 1 failed, 2 skipped")
        self.assertIn("FAILED [default] //t:psn Psn.Orders", lines)
        self.assertIn("skipped [default] //t:psn Psn.NeedsHca: no HCA", lines)

    def test_shell_tests_count_as_one(self):
        code, lines = self.count(0, [self.result("//t:s", "PASSED", SHELL_PASSED)])
        self.assertEqual((code, lines), (0, ["1 passed, 0 failed"]))
        code, lines = self.count(3, [self.result("//t:s", "FAILED", SHELL_FAILED)])
        self.assertEqual((code, lines[-1]), (1, "0 passed, 1 failed"))

    def test_a_test_that_dies_after_its_cases_passed_has_failed(self):
        code, lines = self.count(3, [self.result("//t:s", "FAILED", SHELL_PASSED)])
        self.assertEqual((code, lines[-1]), (1, "1 passed, 1 failed"))

    def test_a_timeout_without_xml_has_failed(self):
        code, lines = self.count(3, [self.result("//t:s", "TIMEOUT")])
        self.assertEqual((code, lines), (1, ["FAILED [default] //t:s (timeout)", "0 passed, 1 failed"]))

    def test_broken_xml_counts_by_the_status(self):
        self.assertEqual(self.count(0, [self.result("//t:s", "PASSED", "<test")])[1], ["1 passed, 0 failed"])
        self.assertEqual(self.count(3, [self.result("//t:s", "FAILED", "<test")])[0], 1)

    def test_only_the_last_attempt_counts(self):
        code, lines = self.count(0, [self.result("//t:s", "FAILED", SHELL_FAILED, attempt=1),
                                     self.result("//t:s", "PASSED", SHELL_PASSED, attempt=2)])
        self.assertEqual((code, lines), (0, ["1 passed, 0 failed"]))

    def test_a_target_that_does_not_build_has_failed(self):
        code, lines = self.count(1, [{"id": {"targetCompleted": {"label": "//d:rdmad"}}, "completed": {}},
                                     self.result("//t:s", "PASSED", SHELL_PASSED)])
        self.assertEqual((code, lines[-1]), (1, "1 passed, 1 failed"))
        self.assertIn("FAILED [default] //d:rdmad: does not build", lines)

    def test_a_package_that_does_not_load_has_failed(self):
        aborted = {"reason": "LOADING_FAILURE", "description": "no such package"}
        code, lines = self.count(1, [{"id": {"configuredLabel": {"label": "//d:x"}}, "aborted": aborted}])
        self.assertEqual((code, lines), (1, ["FAILED [default] //d:x: no such package", "0 passed, 1 failed"]))

    def test_a_run_that_ends_badly_and_silently_has_failed(self):
        code, lines = self.count(37, [self.result("//t:s", "PASSED", SHELL_PASSED)])
        self.assertEqual((code, lines[-1]), (1, "1 passed, 1 failed"))

    def test_a_run_without_events_has_failed(self):
        self.assertEqual(self.main(["default:2:/nonexistent"])[0], 1)

    def test_no_run_at_all_has_failed(self):
        self.assertEqual(self.main([]), (1, ["0 passed, 1 failed"]))

    def test_a_configuration_without_tests_is_no_failure(self):
        self.assertEqual(self.count(4, [], name="tsan"), (0, ["0 passed, 0 failed"]))

    def test_runs_add_up(self):
        first = self.write("first", json.dumps(self.result("//t:s", "PASSED", SHELL_PASSED)))
        second = self.write("second", json.dumps(self.result("//t:p", "FAILED", GTEST)))
        code, lines = self.main([f"default:0:{first}", f"tsan:3:{second}"])
        self.assertEqual((code, lines[-1]), (1, "2 passed, 1 failed, 2 skipped"))
        self.assertIn("FAILED [tsan] //t:p Psn.Orders", lines)

    def test_what_was_kept_outlives_the_next_run(self):
        result = self.result("//t:psn", "FAILED", GTEST)
        events = self.write("events", json.dumps(result) + "\n{cut off")
        self.assertEqual(self.main(["--keep", events]), (0, []))
        self.result("//t:psn", "PASSED", SHELL_PASSED)  # the same file
        code, lines = self.main([f"default:3:{events}"])
        self.assertEqual((code, lines[-1]), (1, "1 passed, 1 failed, 2 skipped"))

    def test_a_report_that_is_not_there_is_no_reason_to_keep_nothing(self):
        result = self.result("//t:s", "TIMEOUT", SHELL_PASSED)
        os.remove(os.path.join(self.folder.name, "__t:s 1.xml"))
        events = self.write("events", json.dumps(result))
        self.assertEqual(self.main(["--keep", events]), (0, []))
        self.assertEqual(self.main([f"default:3:{events}"])[0], 1)


if __name__ == "__main__":
    unittest.main()
