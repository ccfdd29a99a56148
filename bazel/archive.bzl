"""A library with all libraries of this tree that it needs as one static archive, for programs built without Bazel."""

def _cc_archive_impl(ctx):
    linker_inputs = depset(
        transitive = [dep[CcInfo].linking_context.linker_inputs for dep in ctx.attr.deps],
        order = "topological",
    )
    libraries = []
    flags = []
    for linker_input in linker_inputs.to_list():
        for library in linker_input.libraries:
            # Ordinary objects suit programs; they are what this tree's own programs link.
            libraries.append(library.static_library or library.pic_static_library)
        flags += linker_input.user_link_flags
    unique = {library.path: library for library in libraries if library != None}
    script = ctx.actions.declare_file(ctx.label.name + ".mri")
    archive = ctx.actions.declare_file("lib%s.a" % ctx.label.name)
    ctx.actions.write(script, "\n".join(
        ["create " + archive.path] + ["addlib " + path for path in unique] + ["save", "end", ""],
    ))
    ctx.actions.run_shell(
        command = "/usr/bin/ar -M < \"$1\"",
        arguments = [script.path],
        inputs = [script] + unique.values(),
        outputs = [archive],
        mnemonic = "CcArchive",
        progress_message = "Archiving " + archive.short_path,
    )

    # The flags that link Debian's libraries, each once.
    link_flags = ctx.actions.declare_file(ctx.label.name + ".flags")
    ctx.actions.write(link_flags, " ".join({flag: True for flag in flags}.keys()) + "\n")
    headers = depset(transitive = [dep[CcInfo].compilation_context.headers for dep in ctx.attr.deps])
    return [DefaultInfo(
        files = depset([archive, link_flags]),
        runfiles = ctx.runfiles([archive, link_flags], transitive_files = headers),
    )]

# Makes libNAME.a, and NAME.flags with what a program that uses it links besides. A test whose data has the target sees
# the headers, too.
cc_archive = rule(
    implementation = _cc_archive_impl,
    attrs = {"deps": attr.label_list(providers = [CcInfo])},
)
