"""Finds the CUDA toolkit, or stands in for it where there is none.

Makes the repository @cuda:
  facts.bzl        CUDA_PRESENT, CUDA_NVCC, CUDA_VERSION, CUDNN_PRESENT, NCCL_PRESENT: what //bazel:cuda.bzl builds with
  :headers         the toolkit's headers, for host code
  :runtime         the same and the CUDA runtime, linked statically; it loads the driver's library when it is first used
  :cublas_headers  those of cuBLAS alone, which also compile beside the emulator's runtime
  :cudnn_headers   the same of cuDNN
  :linked          what a program depends on that shall link NVIDIA's libraries, found where the toolkit keeps them; with
                   --config=static nothing, so that it starts without them and loads them when a GPU is opened
  :build_facts     ballast_cuda_build.h, which tells code the version; 0 where there is no toolkit

The toolkit is the first of: $BALLAST_CUDA, $CUDA_PATH, $CUDA_HOME, /usr/local/cuda, and the folder of an nvcc on $PATH.
--repo_env=BALLAST_CUDA=none builds without one; a BALLAST_CUDA or CUDA_PATH that holds none is an error.
"""

_NEEDED = ["bin/nvcc", "include/cuda_runtime.h", "include/cublasLt.h", "include/cublas_v2.h"]

def _library_folder(ctx, root):
    for folder in ["lib64", "lib", "targets/x86_64-linux/lib"]:
        if ctx.path(root + "/" + folder + "/libcudart_static.a").exists:
            return root + "/" + folder
    return None

def _missing(ctx, root):
    for name in _NEEDED:
        if not ctx.path(root + "/" + name).exists:
            return name
    folder = _library_folder(ctx, root)
    if not folder:
        return "lib64/libcudart_static.a"
    for name in ["libcublas.so", "libcublasLt.so"]:
        if not ctx.path(folder + "/" + name).exists:
            return "lib64/" + name
    return None

def _find(ctx):
    for variable in ["BALLAST_CUDA", "CUDA_PATH", "CUDA_HOME"]:
        root = ctx.os.environ.get(variable, "").rstrip("/")
        if root == "none":
            return None
        if root:
            missing = _missing(ctx, root)
            if missing:
                fail("%s: got \"%s\", want a CUDA toolkit; there is no %s/%s (\"none\" builds without one)" % (variable, root, root, missing))
            return root
    candidates = ["/usr/local/cuda"]
    nvcc = ctx.which("nvcc")
    if nvcc:
        candidates.append(str(nvcc.realpath.dirname.dirname))
    for root in candidates:
        if not _missing(ctx, root):
            return root
    return None

def _define(ctx, header, name):
    """The number that a header defines a macro as; 0: there is no such header."""
    path = ctx.path(header)
    if not path.exists:
        return 0
    for line in ctx.read(path).split("\n"):
        words = [word for word in line.split(" ") if word]
        if len(words) >= 3 and words[0] == "#define" and words[1] == name:
            return int(words[2])
    return 0

_BUILD = """
package(default_visibility = ["//visibility:public"])

# The top-level headers and what they include; of the C++ libraries beside them we use none.
cc_library(
    name = "headers",
    hdrs = glob(["include/*.h", "include/*.hpp", "include/crt/**", "include/nv/**"]),
    includes = ["include"],
)

cc_library(
    name = "runtime",
    srcs = ["lib/libcudart_static.a"],
    linkopts = ["-ldl", "-lrt", "-lpthread"],
    deps = [":headers"],
)

# By themselves: with the toolkit's other headers they would bring its runtime.
cc_library(
    name = "cublas_headers",
    hdrs = glob(["cublas/*.h"]),
    includes = ["cublas"],
)

cc_library(
    name = "cudnn_headers",
    hdrs = glob(["cudnn/*.h"]),
    includes = ["cudnn"],
)

# Nothing refers to them by symbols: code finds their functions by name, linked or not.
cc_library(
    name = "linked",
    linkopts = select({{
        "@system//:static": [],
        "//conditions:default": [
            "-L{libraries}",
            "-Wl,-rpath,{libraries}",
            "-Wl,--push-state,--no-as-needed",
            "-lcublas",
            "-lcublasLt",
{cudnn}            "-Wl,--pop-state",
        ],
    }}),
)
"""

_BUILD_ABSENT = """
package(default_visibility = ["//visibility:public"])

cc_library(name = "headers")

cc_library(name = "runtime")

cc_library(name = "linked")
"""

_BUILD_FACTS = """
cc_library(
    name = "build_facts",
    hdrs = ["ballast_cuda_build.h"],
    includes = ["."],
)
"""

_HEADER = """#pragma once

// The CUDA version that this build was made with, 13000 for 13.0; 0: without CUDA.
#define BALLAST_CUDA_VERSION {version}
// The major version of the cuBLAS library that goes with it.
#define BALLAST_CUBLAS_MAJOR {cublas}
// Where this build's toolkit keeps its libraries.
#define BALLAST_CUDA_LIBRARIES "{libraries}"
"""

def _cuda_configure_impl(ctx):
    root = _find(ctx)
    include = root + "/include" if root else ""
    version = _define(ctx, include + "/cuda_runtime_api.h", "CUDART_VERSION") if root else 0
    cublas = _define(ctx, include + "/cublas_api.h", "CUBLAS_VER_MAJOR") if root else 0
    libraries = _library_folder(ctx, root) if root else ""

    # The version whose interface cudnn_library.h is written to.
    cudnn = bool(root) and _define(ctx, include + "/cudnn_version.h", "CUDNN_MAJOR") == 9 and ctx.path(libraries + "/libcudnn.so").exists
    if root:
        ctx.symlink(include, "include")
        ctx.symlink(libraries + "/libcudart_static.a", "lib/libcudart_static.a")
        for header in ["cublasLt.h", "cublas_api.h", "cublas_v2.h", "library_types.h"]:
            ctx.symlink(include + "/" + header, "cublas/" + header)
    if cudnn:
        for header in ["cudnn_cnn.h", "cudnn_graph.h", "cudnn_ops.h", "cudnn_version.h", "library_types.h"]:
            ctx.symlink(include + "/" + header, "cudnn/" + header)
    ctx.file("facts.bzl", "\n".join([
        "CUDA_PRESENT = %s" % bool(root),
        "CUDA_NVCC = \"%s\"" % (root + "/bin/nvcc" if root else ""),
        "CUDA_VERSION = %d" % version,
        "CUDNN_PRESENT = %s" % cudnn,
        "NCCL_PRESENT = %s" % bool(root and ctx.path(include + "/nccl.h").exists),
        "",
    ]))
    ctx.file("ballast_cuda_build.h", _HEADER.format(version = version, cublas = cublas, libraries = libraries))
    ctx.file("BUILD", (_BUILD.format(libraries = libraries, cudnn = "            \"-lcudnn\",\n" if cudnn else "") if root else _BUILD_ABSENT) + _BUILD_FACTS)

cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    configure = True,
    environ = ["BALLAST_CUDA", "CUDA_PATH", "CUDA_HOME", "PATH"],
    local = True,
)
