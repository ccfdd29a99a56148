# SPDX-License-Identifier: Apache-2.0
"""The Python package in the folder of build results."""

def _python_package(ctx):
    links = []
    for source in ctx.files.srcs:
        path = source.short_path[len(ctx.label.package) + 1:]
        links.append((ctx.actions.declare_file(path), source))
    links.append((ctx.actions.declare_file("ballast/libballast.so"), ctx.file.library))
    for link, source in links:
        ctx.actions.symlink(output = link, target_file = source)
    files = depset([link for link, _ in links])
    return [DefaultInfo(files = files, runfiles = ctx.runfiles(transitive_files = files))]

python_package = rule(
    implementation = _python_package,
    attrs = {
        "srcs": attr.label_list(allow_files = True, doc = "The package's files, under this folder."),
        "library": attr.label(allow_single_file = True, doc = "libballast.so."),
    },
    doc = "Links the package's files and its library into the folder of build results.",
)
