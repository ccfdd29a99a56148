#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tables of rows from Python, on real servers.

Usage: table_test.py SERVER LIBRARY
"""

import os
import sys
import unittest

sys.path[:0] = ["python", "tests/python"]

try:
    import numpy as np
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(0)

SERVER, os.environ["BALLAST_LIBRARY"] = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])

import ballast
from servers import Servers


class TableTest(unittest.TestCase):
    def setUp(self):
        servers = self.enterContext(Servers(SERVER, servers=2))
        self.ps = self.enterContext(ballast.connect(servers.address, job="test"))
        self.users = self.ps.table("users", 2, ballast.SGD(0.5), initializer="constant { value: 1 }")

    def test_row_begins_with_its_first_gradient(self):
        ids = np.array([-1, 7, 1 << 62, 7], np.int64)
        np.testing.assert_array_equal(self.users.pull(ids), np.ones((4, 2)))
        gradients = np.array([[1, 2], [3, 4], [5, 6], [10, 10]], np.float32)
        result = self.users.push(ids, gradients).result(60)
        self.assertEqual((result.applied, result.created), (3, 3))
        np.testing.assert_array_equal(self.users.pull(ids),
                                      [[0.5, 0], [-5.5, -6], [-1.5, -2], [-5.5, -6]])
        np.testing.assert_array_equal(self.users.pull(np.array([8, 2**64 - 1], np.uint64)), [[1, 1], [0.5, 0]])

    def test_pull_fills_the_callers_array(self):
        into = np.zeros((3, 2), np.float32)
        self.assertIs(self.users.pull(np.arange(3), into), into)
        np.testing.assert_array_equal(into, np.ones((3, 2)))

    def test_tables_of_one_step_are_pushed_together(self):
        items = self.ps.table("items", 3, ballast.RowWiseAdagrad(1), initializer="zeros {}")
        ids = np.arange(4)
        self.ps.push_rows({"users": (ids, np.ones((4, 2), np.float32)), "items": (ids, np.ones((4, 3), np.float32))},
                          examples=4).result(60)
        self.assertEqual(self.ps.step, 1)
        np.testing.assert_array_equal(self.users.pull(ids), np.full((4, 2), 0.5))
        np.testing.assert_allclose(items.pull(ids), np.full((4, 3), -1), rtol=1e-6)

    def test_refuses_rows_that_do_not_fit_and_says_why(self):
        ids = np.arange(3)
        cases = [
            (lambda: self.users.pull(np.arange(3, dtype=np.int32)),
             'ids of table "users": got dtype int32, want int64'),
            (lambda: self.users.pull(ids.reshape(1, 3)),
             r'ids of table "users": got shape \(1, 3\), want one dimension'),
            (lambda: self.users.push(ids, np.ones((3, 3), np.float32)),
             r'gradients of table "users": got shape \(3, 3\), want \(3, 2\)'),
            (lambda: self.ps.push_rows({"others": (ids, None)}), 'table "others" was not declared, want one of'),
            (lambda: self.ps.table("bad", 5000, ballast.SGD(1)), "dim"),
        ]
        for call, message in cases:
            with self.subTest(message), self.assertRaisesRegex(ballast.InvalidArgument, message):
                call()

    def test_admission_waits_for_uses(self):
        rare = self.ps.table("rare", 1, ballast.SGD(1), initializer="zeros {}", min_uses=2)
        self.assertEqual(rare.push(np.array([5]), np.ones((1, 1), np.float32)).result(60).created, 0)
        self.assertEqual(rare.push(np.array([5]), np.ones((1, 1), np.float32)).result(60).created, 1)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
