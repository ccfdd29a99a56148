#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
import struct
import unittest

from names import answer


def query(name, kind):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)


class AnswerTest(unittest.TestCase):
    ADDRESSES = {"a.b.svc.cluster.local": "10.244.0.9"}

    def test_has_the_address_of_a_known_name(self):
        response = answer(query("A.b.svc.cluster.local", 1), self.ADDRESSES)
        self.assertEqual(struct.unpack_from("!HHHHHH", response), (7, 0x8580, 1, 1, 0, 0))
        self.assertEqual(response[-4:], bytes([10, 244, 0, 9]))

    def test_has_no_record_of_another_type(self):
        self.assertEqual(struct.unpack_from("!HHHHHH", answer(query("a.b.svc.cluster.local", 28), self.ADDRESSES)),
                         (7, 0x8580, 1, 0, 0, 0))

    def test_refuses_an_unknown_name(self):
        self.assertEqual(struct.unpack_from("!HHHHHH", answer(query("a.b", 1), self.ADDRESSES)),
                         (7, 0x8583, 1, 0, 0, 0))


if __name__ == "__main__":
    unittest.main()
