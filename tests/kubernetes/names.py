# SPDX-License-Identifier: Apache-2.0
"""The cluster's DNS: answers for the names of pods, with their present addresses."""

import ipaddress
import socket
import struct
import threading

DOMAIN = "cluster.local"
TTL = 5  # Seconds; that of a cluster's DNS.
_A, _AAAA = 1, 28
_RESPONSE, _NO_SUCH_NAME = 0x8580, 0x8583  # Authoritative, recursion available.


def read_question(packet):
    """Returns the name in lower case, the type, and the end of the first question."""
    labels, at = [], 12
    while packet[at]:
        length = packet[at]
        if length > 63:
            raise ValueError("a compressed name in a question")
        labels.append(packet[at + 1:at + 1 + length].decode("ascii"))
        at += 1 + length
    kind, _ = struct.unpack_from("!HH", packet, at + 1)
    return ".".join(labels).lower(), kind, at + 5


def answer(packet, addresses):
    """The response to a query; `addresses` maps names, without a dot at the end, to IPv4 addresses."""
    name, kind, end = read_question(packet)
    known = name in addresses
    records = b""
    if known and kind == _A:
        # The name is that of the question, at byte 12.
        records = struct.pack("!HHHIH", 0xC00C, _A, 1, TTL, 4) + ipaddress.ip_address(addresses[name]).packed
    flags = _RESPONSE if known else _NO_SUCH_NAME
    header = packet[:2] + struct.pack("!HHHHH", flags, 1, 1 if records else 0, 0, 0)
    return header + packet[12:end] + records


class NameServer:
    """Serves UDP on port 53 of an address until the process ends. Thread safety: publish() from any thread."""

    def __init__(self, address):
        self._mutex = threading.Lock()
        self._addresses = {}  # Guarded by _mutex.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((address, 53))
        threading.Thread(target=self._serve, daemon=True).start()

    def publish(self, addresses):
        with self._mutex:
            self._addresses = dict(addresses)

    def _serve(self):
        while True:
            packet, client = self._socket.recvfrom(1024)
            with self._mutex:
                addresses = self._addresses
            try:
                self._socket.sendto(answer(packet, addresses), client)
            except (ValueError, IndexError, struct.error, UnicodeDecodeError):
                continue  # Not a query that a resolver sends.
