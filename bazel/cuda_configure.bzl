"""Finds the CUDA toolkit, or provides empty libraries if there is none.

Creates the repository @cuda:
  facts.bzl        CUDA_PRESENT, CUDA_NVCC, CUDA_VERSION, CUDNN_PRESENT, NCCL_PRESENT, for //bazel:cuda.bzl
  :headers         the toolkit's headers, for host code
  :runtime         the headers and the CUDA runtime, linked statically; it loads the driver's library at its first use
  :cublas_headers  the headers of cuBLAS alone, which also compile with the emulator's runtime
  :cudnn_headers   the headers of cuDNN alone, likewise
  :build_facts     ballast_cuda_build.h, which defines the version; 0 without a toolkit

The toolkit is the first of: $BALLAST_CUDA, $CUDA_PATH, $CUDA_HOME, /usr/local/cuda, and the directory of an nvcc on
$PATH. --repo_env=BALLAST_CUDA=none builds without one; a BALLAST_CUDA or CUDA_PATH without a toolkit is an error.
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
                fail("%s: got \"%s\", want a CUDA toolkit; %s/%s does not exist (\"none\" builds without CUDA)" % (variable, root, root, missing))
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
    """Returns the number that a header defines a macro as; 0 if the header does not exist."""
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

# The top-level headers and the headers that they include; we use none of the C++ libraries next to them.
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

# Separate, because the toolkit's other headers would bring in its runtime.
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
"""

_BUILD_ABSENT = """
package(default_visibility = ["//visibility:public"])

cc_library(name = "headers")

cc_library(name = "runtime")
"""

_BUILD_FACTS = """
cc_library(
    name = "build_facts",
    hdrs = ["ballast_cuda_build.h"],
    includes = ["."],
)
"""

_HEADER = """#pragma once

// The CUDA version of this build, 13000 for 13.0; 0 without CUDA.
#define BALLAST_CUDA_VERSION {version}
// The major version of the matching cuBLAS library.
#define BALLAST_CUBLAS_MAJOR {cublas}
// The major version of cuDNN; 0 if the toolkit lacks it.
#define BALLAST_CUDNN_MAJOR {cudnn}
// The directory of this build's CUDA libraries.
#define BALLAST_CUDA_LIBRARIES "{libraries}"
"""

def _cuda_configure_impl(ctx):
    root = _find(ctx)
    include = root + "/include" if root else ""
    version = _define(ctx, include + "/cuda_runtime_api.h", "CUDART_VERSION") if root else 0
    cublas = _define(ctx, include + "/cublas_api.h", "CUBLAS_VER_MAJOR") if root else 0
    libraries = _library_folder(ctx, root) if root else ""

    # cudnn_library.h is written for the interface of version 9.
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
    ctx.file("ballast_cuda_build.h", _HEADER.format(version = version, cublas = cublas, cudnn = 9 if cudnn else 0, libraries = libraries))
    ctx.file("BUILD", (_BUILD if root else _BUILD_ABSENT) + _BUILD_FACTS)

cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    configure = True,
    environ = ["BALLAST_CUDA", "CUDA_PATH", "CUDA_HOME", "PATH"],
    local = True,
)
