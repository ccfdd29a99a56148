#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What policies allow, by examples of their documentation, and how connections are read."""

import unittest

from policies import Peer, Policies, connections, flows

WEB, DATA, OTHER = Peer({"app": "web"}), Peer({"app": "data"}), Peer({"app": "other"})
SCRAPER, OUTSIDE = Peer({"app": "web"}, "monitoring"), Peer()


def policies(**spec):
    spec = {"podSelector": {"matchLabels": {"app": "data"}}, "policyTypes": ["Ingress"], **spec}
    return Policies({("NetworkPolicy", "p"): {"kind": "NetworkPolicy", "spec": spec}})


class PoliciesTest(unittest.TestCase):
    def test_a_pod_that_no_policy_selects_may_do_everything(self):
        rules = policies(ingress=[])
        self.assertTrue(rules.allow(DATA, WEB, 80))
        self.assertTrue(rules.allow(WEB, OUTSIDE, 443))

    def test_a_selected_pod_is_closed(self):
        rules = policies(ingress=[])
        self.assertFalse(rules.allow(WEB, DATA, 80))
        self.assertTrue(rules.allow(DATA, OUTSIDE, 443))

    def test_a_rule_opens_a_port_to_the_pods_it_selects(self):
        rules = policies(ingress=[{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}],
                                   "ports": [{"protocol": "TCP", "port": 80}]}])
        self.assertTrue(rules.allow(WEB, DATA, 80))
        self.assertFalse(rules.allow(WEB, DATA, 81))
        self.assertFalse(rules.allow(WEB, DATA, 80, "UDP"))
        self.assertFalse(rules.allow(OTHER, DATA, 80))
        self.assertFalse(rules.allow(OUTSIDE, DATA, 80))
        # A selector of pods alone means those of the policy's namespace.
        self.assertFalse(rules.allow(SCRAPER, DATA, 80))

    def test_a_rule_opens_a_port_to_a_namespace(self):
        monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
        rules = policies(ingress=[{"from": [monitoring]}])
        self.assertTrue(rules.allow(SCRAPER, DATA, 80))
        self.assertFalse(rules.allow(WEB, DATA, 80))
        both = {**monitoring, "podSelector": {"matchLabels": {"app": "other"}}}
        self.assertFalse(policies(ingress=[{"from": [both]}]).allow(SCRAPER, DATA, 80))

    def test_egress_closes_what_is_not_opened(self):
        rules = policies(policyTypes=["Egress"], egress=[{"ports": [{"protocol": "UDP", "port": 53}]}])
        self.assertTrue(rules.allow(DATA, OUTSIDE, 53, "UDP"))
        self.assertFalse(rules.allow(DATA, OUTSIDE, 443))
        self.assertTrue(rules.allow(WEB, DATA, 80))

    def test_refuses_what_it_does_not_play(self):
        rules = policies(ingress=[{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}])
        with self.assertRaisesRegex(ValueError, "ipBlock is not played"):
            rules.allow(WEB, DATA, 80)


class ConnectionsTest(unittest.TestCase):
    HEAD = "  sl  local_address rem_address   st tx_queue rx_queue\n"
    # From 10.244.0.3:40000 to 10.244.0.2:7700; a listening socket; a connection of the pod to itself.
    CLIENT = HEAD + "   0: 0300F40A:9C40 0200F40A:1E14 01 0\n   1: 00000000:1E16 00000000:0000 0A 0\n"
    SERVER = HEAD + "   0: 0200F40A:1E14 0300F40A:9C40 01 0\n   1: 0100007F:1E15 0100007F:9C41 01 0\n"

    def test_reads_established_connections_to_others(self):
        self.assertEqual(connections(self.CLIENT), {(40000, "10.244.0.2", 7700)})

    def test_reads_mapped_addresses(self):
        table = self.HEAD + "   0: 0000000000000000FFFF00000300F40A:9C40 0000000000000000FFFF00000200F40A:1E14 01 0\n"
        self.assertEqual(connections(table), {(40000, "10.244.0.2", 7700)})

    def test_counts_a_connection_once(self):
        self.assertEqual(flows({"10.244.0.3": self.CLIENT, "10.244.0.2": self.SERVER}),
                         {("10.244.0.3", "10.244.0.2", 7700)})


if __name__ == "__main__":
    unittest.main()
