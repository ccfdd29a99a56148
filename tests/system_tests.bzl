# SPDX-License-Identifier: Apache-2.0
"""Declares the two kinds of system tests."""

load("//bazel:library.bzl", "ballast_test")

PROGRAMS = ["//cli:ballast", "//server:ballast_server", "//worker:ballast_worker"]

def cluster_test(name, deps = [], **kwargs):
    """A test of servers and clients in its own process.

    Args:
      name: the test.
      deps: libraries besides clients, servers, their protos and gRPC.
      **kwargs: as for ballast_test.
    """
    ballast_test(
        name = name,
        tags = ["grpc"],
        deps = deps + [
            "//client",
            "//proto/ballast/internal/v1:standby_service_proto",
            "//proto/ballast/v1:coordinator_service_proto",
            "//proto/ballast/v1:parameter_service_proto",
            "//server",
            "//tests/testing:cluster",
            "@system//:grpc",
        ],
        headers = "//tests/testing:test_headers",
        **kwargs
    )

def job_test(name, deps = [], data = [], **kwargs):
    """A test of whole jobs by the real programs.

    Args:
      name: the test.
      deps: libraries besides those of the JobTest.
      data: files besides the programs.
      **kwargs: as for ballast_test.
    """
    ballast_test(
        name = name,
        data = data + PROGRAMS,
        tags = ["grpc"],
        deps = deps + ["//tests/testing:job_test"],
        **kwargs
    )
