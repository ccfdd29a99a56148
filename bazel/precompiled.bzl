"""Precompiled headers: what most files include, parsed once instead of a thousand times.

Optimized compilations by Clang use them; others include the headers as ever.
"""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "ACTION_NAMES")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

# Clang wants a main file; all headers, this one too, are given as options.
_MAIN = "/usr/include/grpcpp/grpcpp.h"

_WORKING_DIRECTORY = "/proc/self/cwd"

SYSTEM_HEADERS = [
    "absl/algorithm/container.h",
    "absl/cleanup/cleanup.h",
    "absl/container/flat_hash_map.h",
    "absl/container/flat_hash_set.h",
    "absl/functional/any_invocable.h",
    "absl/functional/function_ref.h",
    "absl/status/statusor.h",
    "absl/strings/ascii.h",
    "absl/strings/escaping.h",
    "absl/strings/match.h",
    "absl/strings/numbers.h",
    "absl/strings/str_cat.h",
    "absl/strings/str_format.h",
    "absl/strings/str_join.h",
    "absl/strings/str_replace.h",
    "absl/strings/str_split.h",
    "absl/strings/strip.h",
    "absl/synchronization/mutex.h",
    "absl/synchronization/notification.h",
    "absl/time/clock.h",
    "absl/time/time.h",
    "absl/types/span.h",
    "algorithm",
    "array",
    "atomic",
    "bit",
    "charconv",
    "chrono",
    "cmath",
    "cstdint",
    "cstring",
    "deque",
    "filesystem",
    "fstream",
    "functional",
    "future",
    "google/protobuf/any.pb.h",
    "google/protobuf/descriptor.h",
    "google/protobuf/descriptor.pb.h",
    "google/protobuf/extension_set.h",
    "google/protobuf/generated_enum_reflection.h",
    "google/protobuf/generated_message_bases.h",
    "google/protobuf/generated_message_reflection.h",
    "google/protobuf/map.h",
    "google/protobuf/map_entry.h",
    "google/protobuf/map_field_inl.h",
    "google/protobuf/message.h",
    # The part of a map with string keys that does not depend on its values.
    "google/protobuf/struct.pb.h",
    "google/protobuf/text_format.h",
    "grpcpp/generic/async_generic_service.h",
    "grpcpp/generic/generic_stub.h",
    "grpcpp/grpcpp.h",
    "grpcpp/impl/codegen/server_callback_handlers.h",
    "grpcpp/impl/service_type.h",
    "grpcpp/support/async_stream.h",
    "grpcpp/support/async_unary_call.h",
    "grpcpp/support/client_callback.h",
    "grpcpp/support/method_handler.h",
    "grpcpp/support/server_callback.h",
    "grpcpp/support/sync_stream.h",
    "iostream",
    "limits",
    "map",
    "memory",
    "nlohmann/json.hpp",
    "numeric",
    "optional",
    "random",
    "set",
    "sstream",
    "string",
    "system_error",
    "thread",
    "tuple",
    "unordered_map",
    "utility",
    "variant",
    "vector",
]

# Generated from protos, for the files that know them.
MESSAGE_HEADERS = [
    "ballast/internal/v1/storage.pb.h",
    "ballast/v1/coordinator_service.grpc.pb.h",
    "ballast/v1/error.pb.h",
    "ballast/v1/parameter_service.grpc.pb.h",
]

MESSAGES = [
    "//proto/ballast/internal/v1:storage_proto",
    "//proto/ballast/v1:coordinator_service_proto",
    "//proto/ballast/v1:error_proto",
    "//proto/ballast/v1:parameter_service_proto",
]

# The options of the sources of tests; a precompiled header must have the same.
TEST_COPTS = ["-O0"]

# Folders of which hardly a file knows the protos.
_WITHOUT_MESSAGES = [
    "bench/peers",
    "cli/data",
    "cli/doctor",
    "server/rpc/port",
    "server/tables/range",
    "worker/data/files",
    "worker/device",
]

# Packages that declare a `precompiled_layer`, and the packages whose files find it parsed already: they include most of
# its headers.
_OF_ROOMS = {
    "//server/shard": [
        "server",
        "server/durability",
        "server/replication",
        "server/rpc",
        "server/rpc/watch",
        "tests/fault/durability",
    ],
}

# The same of files of tests only.
_OF_ROOMS_IN_TESTS = {
    "//client": [
        "client",
        "tests/fault",
        "tests/fault/control",
        "tests/fault/jobs",
        "tests/fault/oracle",
        "tests/fault/overload",
        "tests/fault/tables",
    ],
    "//server/shard": _OF_ROOMS["//server/shard"] + ["server/shard"],
}

def _precompiled_headers_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    output = ctx.actions.declare_file(ctx.label.name + ".pch")
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    base = ctx.file.base
    of_base = [ctx.attr.base[CcInfo]] if base else []
    own = cc_common.merge_cc_infos(cc_infos = of_base + [dep[CcInfo] for dep in ctx.attr.deps]).compilation_context
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        source_file = _MAIN,
        # Clang records where the header was made, so all clones and sandboxes say it in the same words (the disk cache
        # compares bytes).
        output_file = _WORKING_DIRECTORY + "/" + output.path,
        include_directories = own.includes,
        quote_include_directories = own.quote_includes,
        system_include_directories = own.system_includes,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts +
                             (["-include-pch", base.path] if base else []) + [
            "-xc++-header",
            # Templates that the headers use are instantiated here rather than in each file.
            "-fpch-instantiate-templates",
            "-working-directory=" + _WORKING_DIRECTORY,
            "-Xclang",
            "-fno-pch-timestamp",
            # Headers of this tree are recorded relative to it, for Bazel's comparison with what a file may include.
            "--relocatable-pch",
            "-Xclang",
            "-isysroot",
            "-Xclang",
            _WORKING_DIRECTORY,
        ] + [word for header in ctx.attr.headers for word in ["-include", header]],
    )
    action = ACTION_NAMES.cpp_compile
    ctx.actions.run(
        executable = cc_common.get_tool_for_action(feature_configuration = features, action_name = action),
        arguments = cc_common.get_memory_inefficient_command_line(
            feature_configuration = features,
            action_name = action,
            variables = variables,
        ),
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = action,
            variables = variables,
        ),
        inputs = depset(transitive = [toolchain.all_files, own.headers]),
        outputs = [output],
        mnemonic = "PrecompileHeaders",
        progress_message = "Precompiling %s" % ctx.label.name,
    )
    files = depset([output], transitive = [own.headers])
    return [
        DefaultInfo(files = depset([output])),
        CcInfo(compilation_context = cc_common.create_compilation_context(headers = files)),
    ]

precompiled_headers = rule(
    implementation = _precompiled_headers_impl,
    attrs = {
        # Precompiled headers that come before these.
        "base": attr.label(allow_single_file = [".pch"], providers = [CcInfo]),
        "copts": attr.string_list(),
        # Libraries of which `headers` are.
        "deps": attr.label_list(providers = [CcInfo]),
        "headers": attr.string_list(mandatory = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def precompiled_layer(
        headers,
        deps,
        name = "headers",
        base = "//bazel:message_headers",
        variants = ["", "test_"],
        **kwargs):
    """Precompiles headers on top of others, for files of programs and for those of tests.

    Args:
      headers: the headers, relative to the tree.
      deps: libraries of which they are.
      name: what it makes is called so, and test_`name`.
      base: the label of the headers below, without test_.
      variants: "" for files of programs, "test_" for those of tests.
      **kwargs: as for precompiled_headers.
    """
    for test in variants:
        precompiled_headers(
            name = test + name,
            testonly = bool(test),
            base = base.replace(":", ":" + test),
            copts = TEST_COPTS if test else [],
            headers = headers,
            # Only for what uses it.
            tags = ["manual"],
            deps = deps,
            **kwargs
        )

def is_in(package, folder):
    """Returns whether a package is in a folder, or is the folder's own."""
    return (package + "/").startswith(folder + "/")

def headers_for(package, deps, test):
    """Returns the label of the headers that the files of a library or test find parsed already.

    Args:
      package: the library's.
      deps: the library's; in the folder common, they say whether it knows the protos.
      test: whether its files are compiled with TEST_COPTS.
    """
    test_prefix = "test_" if test else ""
    for room, packages in (_OF_ROOMS_IN_TESTS if test else _OF_ROOMS).items():
        if package in packages:
            return room + ":%sheaders" % test_prefix
    if is_in(package, "common"):
        knows_messages = [dep for dep in deps if dep.startswith("//proto/")]
    else:
        knows_messages = not [folder for folder in _WITHOUT_MESSAGES if is_in(package, folder)]
    return "//bazel:" + test_prefix + ("message_headers" if knows_messages else "system_headers")

def precompiled_copts(headers):
    """Options with which a file finds headers parsed already, of which it has the label."""
    label = Label(headers)
    path = [label.workspace_root, label.package, label.name + ".pch"]
    return select({
        str(Label("//bazel:precompiled")): [
            "-include-pch",
            "/".join(["$(GENDIR)"] + [part for part in path if part]),
            # What the recorded names of this tree's headers are relative to.
            "-Xclang",
            "-isysroot",
            "-Xclang",
            ".",
        ],
        "//conditions:default": [],
    })

def precompiled_deps(headers):
    """Dependencies of a target whose files are compiled with precompiled_copts(headers)."""
    return select({
        str(Label("//bazel:precompiled")): [str(Label(headers))],
        "//conditions:default": [],
    })
