"""The repositories that Ballast's BUILD files use, for its own WORKSPACE and for one outside its tree."""

load(":cuda_configure.bzl", "cuda_configure")

def ballast_workspace(path):
    """Declares the repositories. Everything comes from the machine's own packages; Bazel downloads nothing.

    Args:
      path: of Ballast's tree, relative to the calling WORKSPACE or absolute.
    """

    # Debian's libraries (deploy/packages.txt).
    native.new_local_repository(
        name = "system",
        build_file = str(Label("//bazel:system.BUILD")),
        path = path + "/bazel/system_root",
    )

    # The CUDA toolkit where this machine has one.
    cuda_configure(name = "cuda")

    # The first two are stand-ins for repositories that Bazel 4.2 would fetch (see
    # docs/decisions/0001-build-from-debian-packages.md).
    for name, folder in {
        "rules_cc": path + "/bazel/rules_cc",
        "remote_coverage_tools": path + "/bazel/remote_coverage_tools",
        "platforms": "/usr/share/bazel/platforms",
        "rules_java": "/usr/share/bazel/rules/java",
        "rules_proto": "/usr/share/bazel/rules/proto",
        "bazel_skylib": "/usr/share/bazel/tools/skylib",
    }.items():
        native.local_repository(name = name, path = folder)
