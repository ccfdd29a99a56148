"""C++ libraries with GPU code, compiled by the toolkit's nvcc (see cuda_configure.bzl), and their CPU doubles."""

load("@cuda//:facts.bzl", "CUDA_NVCC", "CUDA_PRESENT", "CUDA_VERSION", "CUDNN_PRESENT", "NCCL_PRESENT")
load(":precompiled.bzl", "precompiled_copts", "precompiled_deps")

# Machine code for the A100 and H100 families; PTX, which the driver compiles, for later families. All three from one
# pass over the source, which takes a quarter of the time less than one for each family.
_ARCHITECTURES = "arch=compute_80,code=[sm_80,sm_90,compute_80]"

# What the files find parsed already (precompiled.bzl).
_HEADERS = "//bazel:system_headers"

_EMULATOR = "//worker/device/cuda/emulator:cuda_runtime"

def if_cuda(present, absent = []):
    return present if CUDA_PRESENT else absent

def if_cudnn(present, absent = []):
    return present if CUDNN_PRESENT else absent

def if_nccl(present, absent = []):
    return present if NCCL_PRESENT else absent

def _cuda_objects_impl(ctx):
    headers = depset(
        ctx.files.hdrs,
        transitive = [dep[CcInfo].compilation_context.headers for dep in ctx.attr.deps],
    )
    objects = []
    for src in ctx.files.srcs:
        object = ctx.actions.declare_file("%s/%s.pic.o" % (ctx.label.name, src.basename))
        arguments = ctx.actions.args()
        arguments.add_all(["-c", "-std=c++20", "-O3", "-lineinfo", "-I."])
        arguments.add_all(["-gencode", _ARCHITECTURES])
        arguments.add_all(["-Werror=all-warnings", "-Xcompiler=-fPIC,-Wall,-Wextra,-Werror,-Wno-sign-compare,-g1"])
        arguments.add_all([src, "-o", object])
        ctx.actions.run(
            executable = CUDA_NVCC,
            arguments = [arguments],
            inputs = depset([src], transitive = [headers]),
            outputs = [object],
            # A new toolkit version at the same path must recompile.
            env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "BALLAST_CUDA_VERSION": str(CUDA_VERSION)},
            mnemonic = "CudaCompile",
            progress_message = "Compiling " + src.short_path,
        )
        objects.append(object)
    return [DefaultInfo(files = depset(objects))]

_cuda_objects = rule(
    implementation = _cuda_objects_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"]),
        "hdrs": attr.label_list(allow_files = [".h"]),
        "deps": attr.label_list(providers = [CcInfo]),
    },
)

def _double(label):
    """Maps a library of //worker/device/cuda to its double; other libraries are used as they are."""
    if label.startswith(":"):
        return label + "_emulated"
    if label.startswith("//worker/device/cuda"):
        return (label if ":" in label else label + ":" + label.split("/")[-1]) + "_emulated"
    return label

def cuda_library(name, srcs = [], hdrs = [], deps = [], host_deps = [], emulated = True, alwayslink = False, visibility = None):
    """Declares a library over the CUDA runtime.

    Declares `name`, for GPUs, if there is a toolkit; and always, for tests, `name`_emulated: the same sources
    compiled for the CPU over //worker/device/cuda/emulator.

    Args:
      name: the library.
      srcs: .cu files, compiled by nvcc, and .cc files, compiled by the C++ compiler.
      hdrs: its headers.
      deps: libraries; those under //worker/device/cuda are cuda_library targets.
      host_deps: libraries under //worker/device/cuda that do not depend on a GPU.
      emulated: whether to declare the double; otherwise the package declares `name`_emulated itself if needed.
      alwayslink: as for cc_library; applies to the GPU library.
      visibility: as for cc_library.
    """
    kernels = [src for src in srcs if src.endswith(".cu")]
    hosts = [src for src in srcs if not src.endswith(".cu")]
    if CUDA_PRESENT:
        if kernels:
            _cuda_objects(name = name + "_objects", srcs = kernels, hdrs = hdrs, deps = deps + host_deps, visibility = ["//visibility:private"])
        native.cc_library(
            name = name,
            copts = precompiled_copts(_HEADERS),
            srcs = hosts + ([":%s_objects" % name] if kernels else []),
            hdrs = hdrs,
            alwayslink = alwayslink,
            visibility = visibility,
            deps = deps + host_deps + ["@cuda//:runtime"] + precompiled_deps(_HEADERS),
        )
    if not emulated:
        return
    for kernel in kernels:
        # C++ rules do not accept .cu files as sources.
        native.genrule(
            name = kernel + "_wrapped",
            outs = [kernel + ".cc"],
            cmd = "echo '#include \"%s/%s\"' > $@" % (native.package_name(), kernel),
            visibility = ["//visibility:private"],
        )
    native.cc_library(
        name = name + "_emulated",
        testonly = True,
        copts = precompiled_copts(_HEADERS),
        srcs = hosts + [kernel + ".cc" for kernel in kernels],
        hdrs = hdrs,
        textual_hdrs = kernels,
        visibility = visibility,
        deps = [_double(dep) for dep in deps] + host_deps + [_EMULATOR] + precompiled_deps(_HEADERS),
    )
