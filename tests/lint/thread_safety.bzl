"""Clang's thread-safety analysis as an aspect: g++, which builds, has none."""

def _is_ours(file):
    return file.is_source and file.extension in ["cc", "h"] and not file.path.startswith("external/")

def _thread_safety_impl(target, ctx):
    if CcInfo not in target or not hasattr(ctx.rule.attr, "srcs") or getattr(ctx.rule.attr, "testonly", False):
        return [OutputGroupInfo(thread_safety = depset())]
    context = target[CcInfo].compilation_context
    flags = ["-D" + define for define in context.defines.to_list()]
    for path in context.quote_includes.to_list():
        flags += ["-iquote", path]
    for path in context.includes.to_list():
        flags += ["-I", path]
    for path in context.system_includes.to_list():
        flags += ["-isystem", path]
    flags += [opt for opt in getattr(ctx.rule.attr, "copts", []) if opt.startswith("-I") or opt.startswith("-D")]

    stamps = []
    for source in [f for src in ctx.rule.attr.srcs for f in src.files.to_list()]:
        if source.extension != "cc" or not _is_ours(source):
            continue
        headers = [f for src in ctx.rule.attr.srcs for f in src.files.to_list() if f.extension == "h"]
        stamp = ctx.actions.declare_file(ctx.label.name + ".thread_safety/" + source.basename + ".ok")
        ctx.actions.run_shell(
            inputs = depset([source] + headers, transitive = [context.headers]),
            outputs = [stamp],
            # A file that reaches no mutex of ours has nothing to analyse, and gRPC's headers take clang seconds.
            command = "stamp=$1 ours=$2; shift 2; " +
                      "if grep -qsE 'thread_annotations.h|synchronization/mutex.h' $ours; then " +
                      "/usr/bin/clang++ \"$@\" || exit 1; fi; touch \"$stamp\"",
            arguments = [
                stamp.path,
                " ".join([source.path] + [h.path for h in context.headers.to_list() + headers if _is_ours(h)]),
                "-std=c++20",
                "-fsyntax-only",
                "-Wthread-safety",
                "-Werror",
            ] + flags + [source.path],
            mnemonic = "ThreadSafety",
            progress_message = "Analysing locks in " + source.short_path,
        )
        stamps.append(stamp)
    return [OutputGroupInfo(thread_safety = depset(stamps))]

thread_safety = aspect(
    implementation = _thread_safety_impl,
    doc = "Fails on a source file that touches a guarded field without its mutex. Tests are left out.",
)
