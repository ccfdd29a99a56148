// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/bench_report.h"
#include "bench/lock_step.h"
#include "bench/step_contestants.h"
#include "bench/step_limits.h"
#include "cli/command/command.h"
#include "cli/doctor/machine_facts.h"
#include "common/simd/instruction_set.h"

namespace ballast {
namespace {

constexpr char kUsage[] =
    "usage: ballast bench step [flags]\n\n"
    "Trains MLPs on Fashion-MNIST with one server and two workers of one thread each, batches of 64, SGD: `small`\n"
    "is 784-512-256-10, `large` 784-4096-4096-10. Samples per second count both workers and come from the run's\n"
    "own metrics, without its start. Processes on one machine exchange gradients and values through shared memory;\n"
    "the -tcp lines (sync only) use loopback TCP instead. In turn with them, in the same run:\n"
    "  ballast alone  the computation: workers sum their gradients and exchange nothing for 25 (small) or 5 (large)\n"
    "                 batches\n"
    "  limit          two threads of one process that compute, wait for each other and apply the gradients to both\n"
    "                 models, without a copy or a message: the least that a synchronous step costs within a machine.\n"
    "                 Its wait share is all but the computation\n"
    "  stream         the bytes of a step on a bare TCP stream, by its processor time, as if two processors shared it\n"
    "  limit-tcp      the time of limit and of stream together; none with more than two processors, where a stream\n"
    "                 can overlap with the computation\n"
    "--peer torch trains the same model on the same data with the same batch size and optimizer in PyTorch, also in\n"
    "turn:\n"
    "  torch ddp      DistributedDataParallel on Gloo\n"
    "  torch rpc-tcp  a parameter server over torch.distributed.rpc (TensorPipe), after PyTorch's tutorial: one call\n"
    "                 sends a gradient and returns the new model; over TCP, as between machines\n"
    "  torch rpc      the same with the transport that TensorPipe chooses on one machine: shared memory\n"
    "--observed adds two lines for sync, in turn: `unobserved` runs without HTTP pages and without flight recorders;\n"
    "`observed` has both, and each second a scraper reads the metrics of all processes, and a live page asks them.\n"
    "PyTorch is that of the Python in BALLAST_PYTHON (/usr/bin/python3).\n"
    "With --tls the -tls lines use certificates on both sides and tokens, like `ballast launch`.\n"
    "With --instruction_set avx2, all processes, PyTorch's too, leave AVX-512 aside: what a processor without it "
    "does.\n"
    "All processes run without OPENBLAS_CORETYPE, which would keep OpenBLAS from choosing kernels for this CPU.\n\n";

std::vector<FlagSpec> Flags() {
  return {
      {"peer", "torch", "Run PyTorch in turn with Ballast."},
      {"tls", "", "Run sync also with TLS and tokens, in turn with sync without them."},
      {"observed", "", "Run sync also with and without all that observes a job."},
      {"model", "small|large|both", "Models to train (both)."},
      {"codec", "LIST", "Codecs of gradients and values: fp32,fp16,bf16,int8 (fp32,bf16)."},
      {"modes", "LIST", "Modes, from sync,async (both)."},
      {"instruction_set", "avx2|avx512", "Vector instructions of all processes (the best that this machine has)."},
      {"threads", "", "Also what the threads of our processes did in the last round."},
      {"rounds", "N", "Runs of each contestant; the median counts; 1 to 100 (3)."},
      {"seconds", "S", "Measured seconds of each run, 0.1 to 600 (8)."},
  };
}

struct Options {
  bool torch = false;
  bool tls = false;
  bool observed = false;
  bool threads = false;
  std::vector<std::string> models;
  std::vector<std::string> codecs;
  std::vector<std::string> modes;
  int rounds = 0;
  double seconds = 0;
  // Empty: that of the machine.
  std::string instruction_set;
};

// One contestant: ours, a peer or a limit.
struct Entry {
  // "ballast sync", "torch ddp", "stream", "limit".
  std::string name;
  // Empty unless it is ours.
  std::string codec;
  std::function<absl::StatusOr<StepResult>(const StepTask&)> run;

  std::vector<double> rates;
  std::vector<double> wait_shares;
  // Values of the last round, because they do not vary.
  double bytes_sent = 0;
  double bytes_received = 0;
  ThreadTable threads;
  double threads_seconds = 0;
};

std::vector<Entry> Enter(const Options& options) {
  std::vector<Entry> all = {{.name = "ballast alone",
                             .codec = "fp32",
                             .run =
                                 [](const StepTask& task) {
                                   return TrainWithBallast(task, {"alone", "fp32"});
                                 }},
                            {.name = "limit", .run = TrainInLockStep},
                            {.name = "stream", .run = StreamLikeAStep}};
  for (const std::string& codec : options.codecs) {
    for (const std::string& mode : options.modes) {
      for (const bool shared_memory : {true, false}) {
        if (mode != "sync" && !shared_memory) continue;
        for (const bool tls : {false, true}) {
          if (tls && (mode != "sync" || !options.tls)) continue;
          const BallastSetting setting = {mode, codec, shared_memory, tls};
          all.push_back({.name = absl::StrCat("ballast ", mode, shared_memory ? "" : "-tcp", tls ? "-tls" : ""),
                         .codec = codec,
                         .run = [=](const StepTask& task) { return TrainWithBallast(task, setting); }});
        }
      }
    }
  }
  if (options.observed) {
    for (const bool observed : {false, true}) {
      BallastSetting setting = {.mode = "sync", .codec = "fp32"};
      setting.observed = observed;
      all.push_back({.name = observed ? "ballast observed" : "ballast unobserved",
                     .codec = "fp32",
                     .run = [=](const StepTask& task) { return TrainWithBallast(task, setting); }});
    }
  }
  if (!options.torch) return all;
  for (const std::string method : {"ddp", "rpc-tcp", "rpc"}) {
    all.push_back({.name = absl::StrCat("torch ", method),
                   .run = [=](const StepTask& task) { return TrainWithTorch(task, method); }});
  }
  return all;
}

// Null if it was not measured.
const Entry* Find(const std::vector<Entry>& all, absl::string_view name, absl::string_view codec) {
  for (const Entry& one : all) {
    if (one.name == name && one.codec == codec) return &one;
  }
  return nullptr;
}

// Adds the limit of steps over TCP, round by round.
void AddTcpLimit(std::vector<Entry>& all) {
  Entry limit = {.name = "limit-tcp", .wait_shares = {-1}};
  const Entry* const step = Find(all, "limit", "");
  const Entry* const stream = Find(all, "stream", "");
  for (size_t i = 0; i < step->rates.size(); ++i) limit.rates.push_back(RateOfBoth(step->rates[i], stream->rates[i]));
  all.push_back(std::move(limit));
}

// The median of the ratios of the rounds; 0 if one of the two was not measured.
double RatioOf(const Entry* ours, const Entry* peer) {
  if (ours == nullptr || peer == nullptr) return 0;
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(ours->rates.size(), peer->rates.size()); ++i) {
    ratios.push_back(ours->rates[i] / peer->rates[i]);
  }
  return Median(ratios);
}

absl::Status RunRounds(const Options& options, const StepTask& task, std::vector<Entry>& all, BenchReport& report,
                       std::ostream& err) {
  for (int round = 0; round < options.rounds; ++round) {
    for (auto one = all.begin(); one != all.end();) {
      err << absl::StrFormat("%s model, round %d of %d: %s %s\n", task.model, round + 1, options.rounds, one->name,
                             one->codec)
          << std::flush;
      const absl::StatusOr<StepResult> result = one->run(task);
      if (absl::IsNotFound(result.status()) && one->codec.empty()) {
        report.notes.push_back(absl::StrCat(one->name, " was skipped: ", result.status().message()));
        err << "note: " << report.notes.back() << std::endl;
        one = all.erase(one);
        continue;
      }
      if (!result.ok()) {
        return absl::Status(result.status().code(), absl::StrCat(one->name, " ", one->codec, ", ", task.model,
                                                                 " model: ", result.status().message()));
      }
      one->rates.push_back(result->samples_per_second);
      one->wait_shares.push_back(result->wait_share);
      one->bytes_sent = result->bytes_sent;
      one->bytes_received = result->bytes_received;
      one->threads = result->threads;
      one->threads_seconds = result->threads_seconds;
      ++one;
    }
  }
  return absl::OkStatus();
}

// Prints what the threads did, and returns it as JSON: the busiest first, and without those that did next to nothing.
Json PrintThreads(const Entry& one, std::ostream& out) {
  constexpr double kLeastShare = 0.002;
  std::vector<std::pair<std::pair<std::string, std::string>, ThreadTimes>> threads(one.threads.begin(),
                                                                                   one.threads.end());
  std::stable_sort(threads.begin(), threads.end(),
                   [](const auto& a, const auto& b) { return a.second.running_seconds > b.second.running_seconds; });
  const double steps = one.rates.back() / (kStepWorkers * kStepBatch) * one.threads_seconds;
  Json all = Json::array();
  for (const auto& [name, times] : threads) {
    const double running = times.running_seconds / one.threads_seconds;
    if (running < kLeastShare) continue;
    const double ready = times.ready_seconds / one.threads_seconds;
    all.push_back({{"process", name.first},
                   {"thread", name.second},
                   {"threads", times.threads},
                   {"processors", running},
                   {"ready", ready},
                   {"sleeps_per_step", times.sleeps / steps}});
    out << absl::StrFormat(
        "  %-6s  %-15s %3d threads: run on %.3f processors, are ready for %.3f more, %.1f sleeps a step\n", name.first,
        name.second, times.threads, running, ready, times.sleeps / steps);
  }
  return all;
}

void AddRows(const StepTask& task, const std::vector<Entry>& all, bool threads, BenchReport& report,
             std::ostream& out) {
  const Entry* alone = Find(all, "ballast alone", "fp32");
  const Entry* ddp = Find(all, "torch ddp", "");
  const Entry* rpc = Find(all, "torch rpc", "");
  const Entry* rpc_tcp = Find(all, "torch rpc-tcp", "");
  const auto number = [](double ratio) { return ratio > 0 ? Json(ratio) : Json(); };
  const auto times = [](double ratio) { return ratio > 0 ? absl::StrFormat("%.2f", ratio) : "-"; };
  for (const Entry& one : all) {
    const double rate = Median(one.rates);
    const double wait = Median(one.wait_shares);
    report.rows.push_back({{"model", task.model},
                           {"who", one.name},
                           {"codec", one.codec.empty() ? Json() : Json(one.codec)},
                           {"samples_per_second", rate},
                           {"samples_per_second_rounds", one.rates},
                           {"wait_share", wait < 0 ? Json() : Json(wait)},
                           {"bytes_sent_per_step", one.codec.empty() ? Json() : Json(one.bytes_sent)},
                           {"bytes_received_per_step", one.codec.empty() ? Json() : Json(one.bytes_received)},
                           {"to_alone", number(RatioOf(&one, alone))},
                           {"to_ddp", number(RatioOf(&one, ddp))},
                           {"to_rpc_tcp", number(RatioOf(&one, rpc_tcp))},
                           {"to_rpc", number(RatioOf(&one, rpc))}});
    out << absl::StrFormat(
               "%-6s %-20s %-5s %11.0f %11s %12s %11s %11s %13s %11s\n", task.model, one.name,
               one.codec.empty() ? "fp32" : one.codec, rate, wait < 0 ? "-" : absl::StrFormat("%.3f", wait),
               one.codec.empty() ? "-" : absl::StrFormat("%.2f", (one.bytes_sent + one.bytes_received) / 1e6),
               times(RatioOf(&one, alone)), times(RatioOf(&one, ddp)), times(RatioOf(&one, rpc_tcp)),
               times(RatioOf(&one, rpc)))
        << std::flush;
    if (threads && one.threads_seconds > 0) report.rows.back()["threads"] = PrintThreads(one, out);
  }
  const Entry* sync = Find(all, "ballast sync", "fp32");
  const Entry* tcp = Find(all, "ballast sync-tcp", "fp32");
  const Entry* bf16 = Find(all, "ballast sync", "bf16");
  const Entry* limit = Find(all, "limit", "");
  const Entry* limit_tcp = Find(all, "limit-tcp", "");
  const bool large = absl::string_view(task.model) == "large";
  const auto add = [&](const char* name, const Entry* ours, const Entry* peer, double wanted, const char* what) {
    const double ratio = RatioOf(ours, peer);
    if (ratio == 0) return;
    report.ratios.push_back(
        {absl::StrCat(name, "_", task.model), ratio, wanted, false, absl::StrCat(what, ", ", task.model, " model")});
  };
  add("sync_to_alone", sync, alone, 0.8, "sync step, relative to steps without any exchange");
  add("sync_to_limit", sync, limit, 0.8, "sync step, relative to its limit, two threads in lock step");
  add("sync_tcp_to_limit", tcp, limit_tcp, 0.8,
      "sync step over TCP, relative to its limit, lock step and a bare stream");
  add("limit_to_ddp", limit, ddp, large ? 2 : 1.8, "the limit of the sync step, relative to PyTorch DDP on Gloo");
  add("limit_to_rpc", limit, rpc, large ? 2.8 : 2.2,
      "the limit of the sync step, relative to PyTorch RPC (shared memory)");
  add("limit_to_rpc_tcp", limit, rpc_tcp, large ? 2.8 : 2.2,
      "the limit of the sync step, relative to PyTorch RPC (TCP)");
  add("limit_tcp_to_ddp", limit_tcp, ddp, large ? 1.4 : 1.3,
      "the limit of the sync step over TCP, relative to PyTorch DDP on Gloo");
  add("limit_tcp_to_rpc_tcp", limit_tcp, rpc_tcp, large ? 2.8 : 2.2,
      "the limit of the sync step over TCP, relative to PyTorch RPC (TCP)");
  add("sync_to_ddp", sync, ddp, large ? 2 : 1.8, "sync step, relative to PyTorch DDP on Gloo");
  add("sync_to_rpc", sync, rpc, large ? 2.8 : 2.2, "sync step, relative to PyTorch RPC (shared memory)");
  add("sync_to_rpc_tcp", sync, rpc_tcp, large ? 2.8 : 2.2, "sync step, relative to PyTorch RPC (TCP)");
  add("sync_tcp_to_ddp", tcp, ddp, large ? 1.4 : 1.3, "sync step over TCP, relative to PyTorch DDP on Gloo");
  add("sync_tcp_to_rpc_tcp", tcp, rpc_tcp, large ? 2.8 : 2.2, "sync step over TCP, relative to PyTorch RPC (TCP)");
  if (sync != nullptr && !large) {
    report.ratios.push_back(
        {"sync_wait_small", Median(sync->wait_shares), 0.15, true, "share of the sync step that waits, small model"});
    report.ratios.push_back({"limit_wait_small", Median(limit->wait_shares), 0.15, true,
                             "share of the limit of the sync step that is no computation, small model"});
  }
  add("observed", Find(all, "ballast observed", "fp32"), Find(all, "ballast unobserved", "fp32"), 0.98,
      "sync step with metrics, scrapes, live page and flight recorders, relative to none of them");
  for (const std::string codec : {"fp32", "bf16"}) {
    const std::string suffix = codec == "fp32" ? "" : "_bf16";
    add(absl::StrCat("tls", suffix).c_str(), Find(all, "ballast sync-tls", codec), Find(all, "ballast sync", codec),
        0.7, "sync step with TLS and tokens, relative to plaintext");
    add(absl::StrCat("tls_tcp", suffix).c_str(), Find(all, "ballast sync-tcp-tls", codec),
        Find(all, "ballast sync-tcp", codec), 0.7, "sync step over TCP with TLS and tokens, relative to plaintext");
  }
  if (large) add("sync_bf16_to_ddp", bf16, ddp, 2, "sync step in bf16, relative to PyTorch DDP on Gloo");
}

// Has the processes that start from now on use no instructions beyond `name`; empty: all that the machine has.
absl::Status LimitInstructions(const std::string& name) {
  unsetenv("OPENBLAS_CORETYPE");
  if (name.empty()) return absl::OkStatus();
  if (!AvailableInstructionSet(name).has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("flag --instruction_set: got ", name, ", which this machine lacks"));
  }
  setenv(kInstructionSetVariable, name.c_str(), 1);
  if (name != "avx2") return absl::OkStatus();
  setenv("OPENBLAS_CORETYPE", "Haswell", 1);
  // PyTorch's, its oneDNN's by an older and a newer name, and its MKL's.
  setenv("ATEN_CPU_CAPABILITY", "avx2", 1);
  setenv("DNNL_MAX_CPU_ISA", "AVX2", 1);
  setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 1);
  setenv("MKL_ENABLE_INSTRUCTIONS", "AVX2", 1);
  return absl::OkStatus();
}

absl::StatusOr<BenchReport> Run(const Options& options, std::ostream& out, std::ostream& err) {
  if (absl::Status status = LimitInstructions(options.instruction_set); !status.ok()) return status;
  BenchReport report;
  report.benchmark = "step";
  report.settings = {
      {"workers", kStepWorkers},
      {"threads", 1},
      {"batch", kStepBatch},
      {"optimizer", "sgd"},
      {"rounds", options.rounds},
      {"seconds", options.seconds},
      {"blas", ProbeBlas()},
      {"instruction_set", options.instruction_set.empty() ? NameOf(ChosenInstructionSet()) : options.instruction_set}};
  const std::string data = ProbeDataset();
  if (data.empty()) return absl::NotFoundError("Fashion-MNIST not found; install the package dataset-fashion-mnist");
  out << absl::StrFormat("%-6s %-20s %-5s %11s %11s %12s %11s %11s %13s %11s\n", "model", "who", "codec", "samples/s",
                         "wait share", "MB per step", "times alone", "times ddp", "times rpc-tcp", "times rpc");
  for (const std::string& model : options.models) {
    const StepTask task = {model, data, options.seconds};
    std::vector<Entry> all = Enter(options);
    if (absl::Status status = RunRounds(options, task, all, report, err); !status.ok()) return status;
    AddTcpLimit(all);
    AddRows(task, all, options.threads, report, out);
  }
  return report;
}

}  // namespace

CommandResult StepCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  const auto parse = [&](const Arguments& arguments) {
    const auto peer = arguments.GetChoice("peer", "", {"torch"});
    const auto model = arguments.GetChoice("model", "both", {"small", "large", "both"});
    const auto codecs = arguments.Has("codec") ? GetNames(arguments, "codec", {"fp32", "fp16", "bf16", "int8"})
                                               : absl::StatusOr<std::vector<std::string>>({"fp32", "bf16"});
    const auto modes = GetNames(arguments, "modes", {"sync", "async"});
    const auto rounds = arguments.GetInt("rounds", 3, 1, 100);
    const auto seconds = arguments.GetNumber("seconds", 8, 0.1, 600);
    const auto instructions = arguments.GetChoice("instruction_set", "", {"avx2", "avx512"});
    const bool tls = arguments.Has("tls"), observed = arguments.Has("observed"), threads = arguments.Has("threads");
    return RunUnless({peer.status(), model.status(), codecs.status(), modes.status(), rounds.status(), seconds.status(),
                      instructions.status()},
                     [=, &out, &err] {
                       const std::vector<std::string> models = *model == "both"
                                                                   ? std::vector<std::string>{"small", "large"}
                                                                   : std::vector<std::string>{*model};
                       return Run({*peer == "torch", tls, observed, threads, models, *codecs, *modes, *rounds, *seconds,
                                   *instructions},
                                  out, err);
                     });
  };
  return RunBenchmark(kUsage, Flags(), args, parse, out, err);
}

}  // namespace ballast
