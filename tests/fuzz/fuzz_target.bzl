"""One parser under fuzzing: a libFuzzer program with --config=fuzz, otherwise a test of its seeds and damaged ones."""

load("//bazel:precompiled.bzl", "TEST_COPTS", "precompiled_copts", "precompiled_deps")

_HEADERS = "//bazel:test_message_headers"

def fuzz_target(name, deps, timeout = "short", tags = [], runs = None):
    """Declares a target.

    Args:
      name: the target; its source is `name`.cc.
      deps: libraries of the parser.
      timeout: of the test.
      tags: of the test.
      runs: how many damaged inputs the test tries, if one takes too long for the usual number.
    """
    native.cc_test(
        name = name,
        timeout = timeout,
        srcs = [name + ".cc"],
        copts = TEST_COPTS + precompiled_copts(_HEADERS),
        env = {"BALLAST_FUZZ_RUNS": str(runs)} if runs else {},
        linkopts = select({
            "//tests/fuzz:fuzz": ["-fsanitize=fuzzer"],
            "//conditions:default": [],
        }),
        tags = tags,
        deps = deps + [":fuzz_target"] + select({
            "//tests/fuzz:fuzz": [":seed_writer"],
            "//conditions:default": [":mutation_test"],
        }) + precompiled_deps(_HEADERS),
    )
