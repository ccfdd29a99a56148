"""One parser under fuzzing: libFuzzer's program with --config=fuzz, else a test of its seeds and damaged ones."""

def fuzz_target(name, deps, timeout = "short", tags = []):
    native.cc_test(
        name = name,
        timeout = timeout,
        srcs = [name + ".cc"],
        linkopts = select({
            "//tests/fuzz:fuzz": ["-fsanitize=fuzzer"],
            "//conditions:default": [],
        }),
        tags = tags,
        deps = deps + [":fuzz_target"] + select({
            "//tests/fuzz:fuzz": [":seed_writer"],
            "//conditions:default": [":mutation_test"],
        }),
    )
