# SPDX-License-Identifier: Apache-2.0
"""Declares the tests of the Python package."""

def python_test(name, args = [], data = [], **kwargs):
    """A script that runs with the machine's /usr/bin/python3, against real servers.

    Args:
      name: the test; its script is `name`.py.
      args: arguments after the paths of the server and of the library.
      data: files besides these, the package and servers.py.
      **kwargs: as for sh_test.
    """
    native.sh_test(
        name = name,
        srcs = [name + ".py"],
        args = ["$(location //server:ballast_server)", "$(location //client/c:libballast.so)"] + args,
        data = data + [
            "servers.py",
            "//client/c:libballast.so",
            "//python:ballast",
            "//server:ballast_server",
        ],
        # The library with sanitizers does not load into a program without them.
        tags = ["grpc", "no_asan", "no_tsan"],
        **kwargs
    )
