"""Declares libraries and programs, and tests, which are next to what they test."""

load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library", "cc_test")
load(":precompiled.bzl", "TEST_COPTS", "headers_for", "is_in", "precompiled_copts", "precompiled_deps")

_ABSEIL = "@system//:absl"

# Options of loops over arrays. Clang does not align them, so that each access of 512 bits to an array that begins
# elsewhere crosses a cache line; 256 bits are a third faster there, also in functions for AVX-512.
LOOP_COPTS = ["-O3"] + select({
    "@platforms//cpu:x86_64": ["-mprefer-vector-width=256"],
    "//conditions:default": [],
})

def ballast_test(name, srcs = None, deps = [], copts = [], linkopts = [], headers = None, optimized = False, **kwargs):
    """A GoogleTest program, whose own sources are not optimized, and which is linked fast (decision 0058).

    Args:
      name: the test.
      srcs: its sources; by default `name`.cc.
      deps: libraries; GoogleTest with a main function and Abseil are added.
      copts: options of the compiler.
      linkopts: options of the linker.
      headers: the label of the headers that its files find parsed already; by default those that fit its package.
      optimized: whether its own sources are optimized all the same, because they compute for seconds.
      **kwargs: as for cc_test.
    """
    headers = headers or headers_for(native.package_name(), deps, test = True)
    if optimized:
        headers = headers.replace(":test_", ":")
    cc_test(
        name = name,
        srcs = srcs or [name + ".cc"],
        copts = copts + ([] if optimized else TEST_COPTS) + precompiled_copts(headers),
        linkopts = linkopts + ["-fuse-ld=lld"],
        deps = deps + [_ABSEIL, "@system//:gtest_main", "//common/concurrency:tsan_mutex"] +
               precompiled_deps(headers),
        **kwargs
    )

def ballast_binary(name, deps = [], copts = [], **kwargs):
    """A program, or with `linkshared` a shared object.

    Args:
      name: the program.
      deps: libraries.
      copts: options of the compiler.
      **kwargs: as for cc_binary.
    """
    headers = headers_for(native.package_name(), deps, test = False)
    cc_binary(
        name = name,
        copts = copts + precompiled_copts(headers),
        deps = deps + precompiled_deps(headers),
        **kwargs
    )

def _is_for_tests():
    """Returns whether the package is in the folder tests, of which nothing is optimized (decision 0058)."""
    return is_in(native.package_name(), "tests")

def ballast_library(name, srcs = None, hdrs = None, deps = [], copts = [], test = True, **kwargs):
    """A C++ library, and its test if the folder has `name`_test.cc.

    Args:
      name: the library.
      srcs: its sources; by default `name`.cc, if that exists.
      hdrs: its headers; by default `name`.h, if that exists.
      deps: libraries; Abseil is added.
      copts: options of the compiler.
      test: False if the package declares `name`_test itself.
      **kwargs: as for cc_library. `test_deps`, `test_tags` and so on are the test's `deps`, `tags` and so on; the
        library itself and what ballast_test adds need no mention there.
    """
    of_test = {key[len("test_"):]: value for key, value in kwargs.items() if key.startswith("test_")}
    headers = headers_for(native.package_name(), deps, test = _is_for_tests())
    cc_library(
        name = name,
        srcs = native.glob([name + ".cc"], allow_empty = True) if srcs == None else srcs,
        hdrs = native.glob([name + ".h"], allow_empty = True) if hdrs == None else hdrs,
        copts = copts + (TEST_COPTS if _is_for_tests() else []) + precompiled_copts(headers),
        deps = deps + ([] if name == "tsan_mutex" else [_ABSEIL]) + precompiled_deps(headers),
        **{key: value for key, value in kwargs.items() if not key.startswith("test_")}
    )
    if test and native.glob([name + "_test.cc"], allow_empty = True):
        of_test["deps"] = [":" + name] + of_test.get("deps", [])
        of_test["headers"] = headers_for(native.package_name(), deps + of_test["deps"], test = True)
        ballast_test(name = name + "_test", **of_test)
    elif of_test:
        fail("%s has no %s_test.cc, but %s" % (name, name, ["test_" + key for key in of_test]))

def ballast_room(name, deps = [], test_deps = [], tests = {}, exclude = [], **kwargs):
    """All of a folder's C++ as one library, and each of its tests.

    The library has every source and header of the folder; a file that is not listed here belongs to it. Fixtures
    (`*_fixture.h`, `testing/*.h`) become the library `name`_fixture, which every test of the folder sees.

    Args:
      name: the library; the folder's name, so that `//folder` means it.
      deps: libraries of other folders; Abseil is added.
      test_deps: libraries that only the folder's tests use.
      tests: attributes of single tests, by name: {"x_test": {"tags": ["grpc"]}}.
      exclude: files that the package declares by itself.
      **kwargs: as for cc_library.
    """
    fixtures = native.glob(["*_fixture.h", "testing/*.h"], exclude = exclude, allow_empty = True)
    sources = native.glob(["*.cc"], exclude = ["*_test.cc"] + exclude, allow_empty = True)
    headers = native.glob(["*.h"], exclude = fixtures + exclude, allow_empty = True)
    ballast_library(name = name, srcs = sources, hdrs = headers, deps = deps, test = False, **kwargs)
    if fixtures:
        ballast_library(
            name = name + "_fixture",
            testonly = True,
            hdrs = fixtures,
            deps = [":" + name] + test_deps,
            test = False,
        )
    for test in native.glob(["*_test.cc"], exclude = exclude, allow_empty = True):
        own = dict(tests.get(test[:-len(".cc")], {}))
        own_deps = [":" + name] + ([":" + name + "_fixture"] if fixtures else []) + test_deps + own.pop("deps", [])
        of_deps = headers_for(native.package_name(), deps + own_deps, test = True)
        ballast_test(name = test[:-len(".cc")], deps = own_deps, headers = of_deps, **own)
