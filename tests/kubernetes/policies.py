# SPDX-License-Identifier: Apache-2.0
"""What NetworkPolicies allow, and which connections pods have."""

import dataclasses
import ipaddress
import socket

from objects import of_kind, select

FIRST_CHOSEN_PORT = 32768
_ESTABLISHED = "01"


@dataclasses.dataclass(frozen=True)
class Peer:
    """One end of a connection. Without labels it is no pod but an address outside of the cluster."""

    labels: dict = None
    namespace: str = "default"

    def in_namespace_of(self, selector):
        # Every namespace has this label.
        return select({"kubernetes.io/metadata.name": self.namespace}, selector)


class Policies:
    """The NetworkPolicies of one namespace. Fields that are not played are refused, not ignored."""

    def __init__(self, objects, namespace="default"):
        self._namespace = namespace
        self._specs = [item["spec"] for item in of_kind(objects, "NetworkPolicy")]

    def __bool__(self):
        return bool(self._specs)

    def allow(self, source, destination, port, protocol="TCP"):
        return (self._side("Egress", "egress", "to", source, destination, port, protocol) and
                self._side("Ingress", "ingress", "from", destination, source, port, protocol))

    def _side(self, kind, rules, peers, pod, other, port, protocol):
        if pod.labels is None or pod.namespace != self._namespace:
            return True  # These policies say nothing of it.
        specs = [spec for spec in self._specs
                 if kind in spec["policyTypes"] and select(pod.labels, spec["podSelector"])]
        if not specs:
            return True
        return any(self._ports(rule, port, protocol) and self._peers(rule.get(peers, []), other)
                   for spec in specs for rule in spec.get(rules, []))

    @staticmethod
    def _ports(rule, port, protocol):
        allowed = rule.get("ports", [])
        return not allowed or any((one["port"], one.get("protocol", "TCP")) == (port, protocol) for one in allowed)

    def _peers(self, peers, other):
        return not peers or any(self._is(peer, other) for peer in peers)

    def _is(self, peer, other):
        if set(peer) - {"podSelector", "namespaceSelector"}:
            raise ValueError(f"network policy: {', '.join(sorted(peer))} is not played")
        if other.labels is None:
            return False
        if "namespaceSelector" in peer:
            if not other.in_namespace_of(peer["namespaceSelector"]):
                return False
        elif other.namespace != self._namespace:
            return False
        return select(other.labels, peer.get("podSelector", {}))


def connections(table):
    """(local port, remote address, remote port) of the established IPv4 connections in the text of /proc/PID/net/tcp,
    or of tcp6, where a socket for both kinds shows them as mapped addresses."""
    found = set()
    for line in table.splitlines():
        _, local, remote, state = line.split()[:4]
        if state != _ESTABLISHED:  # Or a heading.
            continue
        packed, port = remote.split(":")
        # Words of four bytes in the machine's order.
        words = [socket.htonl(int(packed[i:i + 8], 16)).to_bytes(4, "big") for i in range(0, len(packed), 8)]
        address = ipaddress.ip_address(b"".join(words))
        address = getattr(address, "ipv4_mapped", None) or address
        if not address.is_loopback:
            found.add((int(local.split(":")[1], 16), str(address), int(port, 16)))
    return found


def flows(tables):
    """(source, destination, port) of each connection; `tables` maps the addresses of pods to the texts of their
    tables."""
    result = set()
    for address, text in tables.items():
        for local, remote, port in connections(text):
            # Both ends show a connection. The one that connected has a port of the kernel's choice.
            if port < FIRST_CHOSEN_PORT <= local:
                result.add((address, remote, port))
    return result
