"""Precompiled headers: what most files include of the machine's own libraries, parsed once instead of a thousand times.

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

# The options of the sources of tests; a precompiled header must have the same.
TEST_COPTS = ["-O0"]

def _precompiled_headers_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    output = ctx.actions.declare_file(ctx.label.name + ".pch")
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        source_file = _MAIN,
        # Clang records where the header was made, so all clones and sandboxes say it in the same words (the disk cache
        # compares bytes).
        output_file = _WORKING_DIRECTORY + "/" + output.path,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts + [
            "-xc++-header",
            # Templates that the headers use are instantiated here rather than in each file.
            "-fpch-instantiate-templates",
            "-working-directory=" + _WORKING_DIRECTORY,
            "-Xclang",
            "-fno-pch-timestamp",
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
        inputs = toolchain.all_files,
        outputs = [output],
        mnemonic = "PrecompileHeaders",
        progress_message = "Precompiling %s" % ctx.label.name,
    )
    return [
        DefaultInfo(files = depset([output])),
        CcInfo(compilation_context = cc_common.create_compilation_context(headers = depset([output]))),
    ]

precompiled_headers = rule(
    implementation = _precompiled_headers_impl,
    attrs = {
        "copts": attr.string_list(),
        "headers": attr.string_list(mandatory = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def precompiled_copts(name):
    """Options with which a file finds the headers of //bazel:`name` parsed already."""
    root = Label("//bazel").workspace_root
    return select({
        str(Label("//bazel:precompiled")): [
            "-include-pch",
            "/".join([part for part in ["$(GENDIR)", root, "bazel", name + ".pch"] if part]),
        ],
        "//conditions:default": [],
    })

def precompiled_deps(name):
    """Dependencies of a target whose files are compiled with precompiled_copts(name)."""
    return select({
        str(Label("//bazel:precompiled")): [str(Label("//bazel:" + name))],
        "//conditions:default": [],
    })
