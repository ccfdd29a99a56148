// SPDX-License-Identifier: Apache-2.0
#include <google/protobuf/stubs/common.h>
#include <grpcpp/version_info.h>

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/command/command.h"
#include "cli/doctor/flight_report.h"
#include "cli/doctor/machine_facts.h"
#include "cli/report/run_catalog.h"
#include "common/program/arguments.h"
#include "common/program/this_process.h"
#include "common/text/json_fields.h"
#include "nlohmann/json.hpp"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kUsage[] =
    "usage: ballast doctor [RUN_DIR] [--json]\n\n"
    "Checks what this machine has for Ballast and what it lacks. Exit status 0: the machine can train on the CPU.\n"
    "With a run directory: reads the flight dumps in its logs, which hold the last events of servers and workers, and\n"
    "says for whom others waited in vain and what each process did last.\n\n";

const std::vector<FlagSpec>& Flags() {
  static const auto* flags = new std::vector<FlagSpec>{{"json", "", "Print one JSON object."}};
  return *flags;
}

struct Diagnosis {
  CpuFacts cpu;
  MemoryFacts memory;
  std::string blas;
  CudaFacts cuda;
  absl::Status loopback;
  ProgramFacts server;
  ProgramFacts worker;
  std::string dataset;
  uint64_t disk_bytes = 0;
  // Reasons why a job cannot run on this machine.
  std::vector<std::string> problems;
};

Diagnosis Diagnose() {
  Diagnosis found;
  // Start programs before the other probes start threads.
  found.server = ProbeProgram("server");
  found.worker = ProbeProgram("worker");
  found.cpu = ProbeCpu();
  found.memory = ProbeMemory();
  found.blas = ProbeBlas();
  found.cuda = ProbeCuda();
  found.loopback = ProbeLoopback();
  found.dataset = ProbeDataset();
  found.disk_bytes = ProbeDiskBytes();
  for (const ProgramFacts* program : {&found.server, &found.worker}) {
    if (program->starts.ok()) continue;
    const std::string prefix = program->path.empty() ? "" : absl::StrCat(program->path, " ");
    found.problems.push_back(absl::StrCat(prefix, program->starts.message()));
  }
  if (!found.loopback.ok()) found.problems.emplace_back(found.loopback.message());
  return found;
}

std::string ProtobufVersion() {
  return absl::StrCat(GOOGLE_PROTOBUF_VERSION / 1000000, ".", GOOGLE_PROTOBUF_VERSION / 1000 % 1000, ".",
                      GOOGLE_PROTOBUF_VERSION % 1000);
}

// __VERSION__ names Clang, but not GCC.
std::string Compiler() {
  return absl::StrContains(absl::AsciiStrToLower(__VERSION__), "clang") ? __VERSION__
                                                                        : absl::StrCat("GCC ", __VERSION__);
}

Json OrNull(const std::string& text) { return text.empty() ? Json() : Json(text); }

Json ProgramJson(const ProgramFacts& program) {
  return {{"path", OrNull(program.path)},
          {"starts", program.starts.ok()},
          {"reason", OrNull(std::string(program.starts.message()))}};
}

Json CudaJson(const CudaFacts& cuda) {
  Json devices = Json::array();
  for (const GpuFacts& gpu : cuda.devices) {
    devices.push_back(
        {{"name", gpu.name}, {"compute_capability", gpu.compute_capability}, {"memory_bytes", gpu.memory_bytes}});
  }
  Json libraries = Json::array();
  for (const LibraryFacts& library : cuda.libraries) {
    libraries.push_back({{"name", library.name},
                         {"use", library.use},
                         {"needed", library.needed},
                         {"path", OrNull(library.path)},
                         {"version", OrNull(library.version)},
                         {"reason", OrNull(library.problem)}});
  }
  return {{"toolkit", OrNull(cuda.toolkit)}, {"driver", OrNull(cuda.driver)}, {"devices", devices},
          {"libraries", libraries},          {"usable", cuda.usable},         {"reason", OrNull(cuda.reason)}};
}

Json DiagnosisJson(const Diagnosis& found) {
  return {{"ready", found.problems.empty()},
          {"problems", found.problems},
          {"version", kVersion},
          {"protocol_version", kProtocolVersion},
          {"grpc", GRPC_CPP_VERSION_STRING},
          {"protobuf", ProtobufVersion()},
          {"compiler", Compiler()},
          {"cpu",
           {{"model", found.cpu.model},
            {"cores", found.cpu.cores},
            {"avx2", found.cpu.avx2},
            {"avx512", found.cpu.avx512}}},
          {"memory", {{"total_bytes", found.memory.total_bytes}, {"available_bytes", found.memory.available_bytes}}},
          {"blas", OrNull(found.blas)},
          {"cuda", CudaJson(found.cuda)},
          {"loopback", {{"usable", found.loopback.ok()}, {"reason", OrNull(std::string(found.loopback.message()))}}},
          {"server", ProgramJson(found.server)},
          {"worker", ProgramJson(found.worker)},
          {"dataset", OrNull(found.dataset)},
          {"disk", {{"free_bytes", found.disk_bytes}}}};
}

std::string Gibibytes(uint64_t bytes) { return absl::StrFormat("%.1f GiB", static_cast<double>(bytes) / (1 << 30)); }

std::string SimdText(const CpuFacts& cpu) {
  if (cpu.avx512) return "AVX2, AVX-512";
  return cpu.avx2 ? "AVX2" : "neither AVX2 nor AVX-512";
}

std::string ProgramText(const ProgramFacts& program) {
  if (program.path.empty()) return "not found";
  return program.starts.ok() ? program.path : absl::StrCat(program.path, " ", program.starts.message());
}

std::string CudaText(const CudaFacts& cuda) {
  if (!cuda.usable) return absl::StrCat("not usable: ", cuda.reason);
  return absl::StrJoin(cuda.devices, "; ", [](std::string* text, const GpuFacts& gpu) {
    absl::StrAppend(text, gpu.name, ", ", Gibibytes(gpu.memory_bytes), ", compute capability ", gpu.compute_capability);
  });
}

std::string LibrariesText(const std::vector<LibraryFacts>& libraries) {
  if (libraries.empty()) return "not checked (build without CUDA)";
  return absl::StrJoin(libraries, "; ", [](std::string* text, const LibraryFacts& library) {
    if (library.path.empty()) {
      absl::StrAppend(text, "no ", library.name, " (", library.use, ")");
    } else {
      absl::StrAppend(text, library.name, " (", library.version.empty() ? "unknown version" : library.version, ")");
    }
  });
}

void PrintDiagnosis(const Diagnosis& found, std::ostream& out) {
  auto line = [&](absl::string_view what, const std::string& text) { out << absl::StrFormat("%-9s %s\n", what, text); };
  line("ballast", absl::StrFormat("%s, wire protocol %d", kVersion, kProtocolVersion));
  line("built by", absl::StrFormat("%s, gRPC %s, Protobuf %s", Compiler(), GRPC_CPP_VERSION_STRING, ProtobufVersion()));
  line("cpu", absl::StrFormat("%d cores, %s, %s", found.cpu.cores,
                              found.cpu.model.empty() ? "unknown model" : found.cpu.model, SimdText(found.cpu)));
  line("memory", absl::StrFormat("%s, %s available", Gibibytes(found.memory.total_bytes),
                                 Gibibytes(found.memory.available_bytes)));
  line("disk", absl::StrFormat("%s free here", Gibibytes(found.disk_bytes)));
  line("blas", found.blas.empty() ? "no shared OpenBLAS; a statically linked worker contains its own" : found.blas);
  line("gpu", CudaText(found.cuda));
  line("cuda", absl::StrFormat("toolkit %s, driver %s", found.cuda.toolkit.empty() ? "none" : found.cuda.toolkit,
                               found.cuda.driver.empty() ? "none" : found.cuda.driver));
  line("libraries", LibrariesText(found.cuda.libraries));
  line("ports", found.loopback.ok() ? "a server can listen on 127.0.0.1" : std::string(found.loopback.message()));
  line("server", ProgramText(found.server));
  line("worker", ProgramText(found.worker));
  line("dataset",
       found.dataset.empty() ? "no Fashion-MNIST; the example needs the package dataset-fashion-mnist" : found.dataset);
  out << (found.problems.empty() ? "ready: this machine can train on the CPU" : "not ready")
      << (found.problems.empty() && found.cuda.usable ? " and on its GPU" : "") << std::endl;
}

CommandResult DiagnoseRun(const std::string& directory, bool json, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<RunInfo> run = ReadRun(directory);
  if (!run.ok()) return Fail(err, run.status(), kExitBadInput);
  const absl::StatusOr<FlightReport> report = ReadFlights(directory);
  if (!report.ok()) return Fail(err, report.status(), kExitFailure);
  if (json) {
    Json all = {{"run", directory}, {"state", StateName(run->state)}, {"error", OrNull(run->error)}};
    all.update(ToJson(*report));
    out << JsonLine(all) << std::endl;
    return kExitSuccess;
  }
  out << "run " << directory << ": " << StateName(run->state) << (run->error.empty() ? "" : ": ") << run->error << "\n";
  Print(*report, out);
  return kExitSuccess;
}

}  // namespace

const std::vector<FlagSpec>& DoctorFlags() { return Flags(); }

// `ballast doctor`: reports what this machine has, and succeeds if the machine can train on the CPU; or what the flight
// dumps of a run tell.
CommandResult DoctorCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<Arguments> arguments = Arguments::Parse(Flags(), args);
  if (!arguments.ok()) return Fail(err, arguments.status(), kExitBadInput);
  if (arguments->help()) {
    out << kUsage << DescribeFlags(Flags());
    return kExitSuccess;
  }
  const std::vector<std::string>& words = arguments->positional();
  if (words.size() > 1) {
    return Fail(err,
                absl::InvalidArgumentError(
                    absl::StrCat("doctor: got ", words.size(), " words, want at most one run directory; see --help")),
                kExitBadInput);
  }
  if (words.size() == 1) return DiagnoseRun(words[0], arguments->Has("json"), out, err);
  const Diagnosis found = Diagnose();
  if (arguments->Has("json")) {
    out << DiagnosisJson(found).dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  } else {
    PrintDiagnosis(found, out);
  }
  if (found.problems.empty()) return kExitSuccess;
  return Fail(err, absl::FailedPreconditionError(absl::StrJoin(found.problems, "\n")), kExitFailure);
}

}  // namespace ballast
