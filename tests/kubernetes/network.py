# SPDX-License-Identifier: Apache-2.0
"""Network of the stand-in: a bridge in this process's namespace, and a namespace and an address for each pod."""

import ipaddress
import subprocess


def ip(*lines):
    """Runs `ip` commands, one a line, in this namespace."""
    result = subprocess.run(["ip", "-batch", "-"], input="\n".join(lines) + "\n", text=True, capture_output=True,
                            timeout=60)
    if result.returncode != 0:
        raise RuntimeError(f"ip: {result.stderr.strip()} for {'; '.join(lines)}")


class Network:
    """Hands out namespaces. No address is used twice, so a replaced pod always has another one."""

    BRIDGE = "pods"

    def __init__(self, subnet="10.244.0.0/16"):
        self._subnet = ipaddress.ip_network(subnet)
        self._hosts = self._subnet.hosts()
        gateway = next(self._hosts)
        self.name_server = str(gateway)
        ip("link set lo up", f"link add {self.BRIDGE} type bridge",
           f"addr add {gateway}/{self._subnet.prefixlen} dev {self.BRIDGE}", f"link set {self.BRIDGE} up")
        self._made = 0

    def add(self):
        """Makes a namespace; returns its name and its address."""
        self._made += 1
        name, address = f"pod{self._made}", str(next(self._hosts))
        ip(f"netns add {name}",
           f"link add veth{self._made} type veth peer name eth0 netns {name}",
           f"link set veth{self._made} master {self.BRIDGE}", f"link set veth{self._made} up")
        subprocess.run(["ip", "-netns", name, "-batch", "-"], check=True, text=True, timeout=60, input=(
            f"link set lo up\naddr add {address}/{self._subnet.prefixlen} dev eth0\nlink set eth0 up\n"))
        return name, address

    def remove(self, name):
        # The pair goes at once; the namespace as soon as its last process has ended.
        ip(f"link delete veth{name[len('pod'):]}", f"netns delete {name}")

    def cut(self, name):
        """Takes the cable out, as when a node is lost."""
        ip(f"link set veth{name[len('pod'):]} down")
