"""C++ libraries from .proto files, by the machine's own protoc and grpc_cpp_plugin."""

def cc_proto(name, srcs, deps = [], imports = [], services = False, visibility = None):
    """Generates and compiles messages, and service stubs where asked.

    Args:
      name: the cc_library.
      srcs: .proto files under proto/, imported relative to that folder.
      deps: cc_proto targets whose files srcs import.
      imports: filegroups of .proto files of other packages that srcs import.
      services: whether srcs define services.
      visibility: as for cc_library.
    """
    outs = []
    for src in srcs:
        stem = src[:-len(".proto")]
        outs += [stem + ".pb.h", stem + ".pb.cc"]
        if services:
            outs += [stem + ".grpc.pb.h", stem + ".grpc.pb.cc"]
    plugin = "--plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin --grpc_out=$(GENDIR)/proto " if services else ""
    native.genrule(
        name = name + "_gen",
        srcs = srcs + [":sources"] + imports,
        outs = outs,
        cmd = "/usr/bin/protoc -Iproto --cpp_out=$(GENDIR)/proto " + plugin +
              " ".join(["$(location %s)" % src for src in srcs]),
        visibility = ["//visibility:private"],
    )
    native.cc_library(
        name = name,
        srcs = [out for out in outs if out.endswith(".cc")],
        hdrs = [out for out in outs if out.endswith(".h")],
        copts = ["-w"],
        strip_include_prefix = "/proto",
        visibility = visibility,
        deps = deps + (["@system//:grpc"] if services else ["@system//:protobuf"]),
    )
