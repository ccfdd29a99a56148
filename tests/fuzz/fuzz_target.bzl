"""One parser under fuzzing: a libFuzzer program with --config=fuzz, otherwise a test of its seeds and damaged ones."""

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
