// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/machine_facts.h"

#include <arpa/inet.h>
#include <ballast_cuda_build.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/command/command.h"
#include "cli/hosts/supervisor.h"
#include "common/program/cuda_support.h"
#include "common/program/nvidia_libraries.h"

namespace ballast {
namespace {

constexpr char kDataset[] = "/usr/share/datasets/fashion-mnist";

// Returns the value after "key   :" in a file of /proc; empty if there is no such line.
std::string ReadProcLine(const char* path, absl::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    absl::string_view rest = line;
    if (!absl::ConsumePrefix(&rest, key)) continue;
    rest = absl::StripLeadingAsciiWhitespace(rest);
    if (absl::ConsumePrefix(&rest, ":")) return std::string(absl::StripAsciiWhitespace(rest));
  }
  return "";
}

uint64_t ReadKibibytes(absl::string_view key) {
  uint64_t number = 0;
  const std::string text = ReadProcLine("/proc/meminfo", key);
  return absl::SimpleAtoi(absl::StripSuffix(text, " kB"), &number) ? number * 1024 : 0;
}

// Keeps the last output of one child and its exit status.
class LastOutput : public ProcessListener {
 public:
  void OnOutput(int, absl::string_view bytes) override {
    absl::StrAppend(&text_, bytes);
    if (text_.size() > kMaxBytes) text_.erase(0, text_.size() - kMaxBytes);
  }
  void OnEnd(int, const ExitStatus& status) override { end_ = status; }
  void OnSignal(int) override { interrupted_ = true; }

  bool done() const { return end_.has_value() || interrupted_; }
  absl::Status Judge() const {
    if (!end_.has_value()) return absl::DeadlineExceededError("timed out after 5 s running --help");
    if (end_->ok()) return absl::OkStatus();
    const std::vector<std::string> lines = absl::StrSplit(text_, '\n', absl::SkipWhitespace());
    return absl::UnknownError(
        absl::StrCat(end_->ToString(), lines.empty() ? "" : ": ", lines.empty() ? "" : lines.back()));
  }

 private:
  static constexpr size_t kMaxBytes = 4096;
  std::string text_;
  std::optional<ExitStatus> end_;
  bool interrupted_ = false;
};

}  // namespace

CpuFacts ProbeCpu() {
  CpuFacts cpu;
  cpu.model = ReadProcLine("/proc/cpuinfo", "model name");
  cpu.cores = static_cast<int>(std::thread::hardware_concurrency());
  const std::string flags = absl::StrCat(" ", ReadProcLine("/proc/cpuinfo", "flags"), " ");
  cpu.avx2 = absl::StrContains(flags, " avx2 ");
  cpu.avx512 = absl::StrContains(flags, " avx512f ");
  return cpu;
}

MemoryFacts ProbeMemory() { return {ReadKibibytes("MemTotal"), ReadKibibytes("MemAvailable")}; }

std::string ProbeBlas() {
  void* library = dlopen("libopenblas.so.0", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return "";
  auto config = reinterpret_cast<char* (*)()>(dlsym(library, "openblas_get_config"));
  return config == nullptr ? "OpenBLAS" : std::string(absl::StripAsciiWhitespace(config()));
}

absl::Status ProbeLoopback() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0) return absl::ErrnoToStatus(errno, "cannot open a socket");
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool works =
      bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 && listen(listener, 1) == 0;
  const int error = errno;
  close(listener);
  return works ? absl::OkStatus() : absl::ErrnoToStatus(error, "cannot listen on 127.0.0.1");
}

ProgramFacts ProbeProgram(const std::string& role) {
  ProgramFacts program;
  const absl::StatusOr<std::string> path = FindBinary(role, OwnPath());
  if (!path.ok()) return {"", path.status()};
  program.path = *path;
  LastOutput output;
  absl::StatusOr<std::unique_ptr<Supervisor>> supervisor = Supervisor::Create(&output);
  if (!supervisor.ok()) return {*path, supervisor.status()};
  if (auto child = (*supervisor)->Start({*path, "--help"}); !child.ok()) return {*path, child.status()};
  const absl::Time deadline = absl::Now() + absl::Seconds(5);
  while (!output.done() && absl::Now() < deadline) (*supervisor)->Poll(deadline - absl::Now());
  program.starts = output.Judge();
  return program;
}

uint64_t ProbeDiskBytes() {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(".", error);
  return error ? 0 : space.available;
}

std::string ProbeDataset() {
  std::error_code ignored;
  const bool there = std::filesystem::exists(absl::StrCat(kDataset, "/train-images-idx3-ubyte.gz"), ignored);
  return there ? kDataset : "";
}

namespace {

// Calls a function of the driver's library (cuda.h); 0 is success.
template <typename... Args>
int CallDriver(void* library, const char* name, Args... args) {
  constexpr int kNotFound = 500;
  auto function = reinterpret_cast<int (*)(Args...)>(dlsym(library, name));
  return function == nullptr ? kNotFound : function(args...);
}

std::string DescribeError(void* library, int error) {
  const char* text = nullptr;
  if (CallDriver(library, "cuGetErrorString", error, &text) != 0 || text == nullptr) text = "unknown";
  return absl::StrCat("error ", error, ", ", text);
}

std::string FindToolkit() {
  std::vector<std::string> folders;
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* folder = std::getenv(variable); folder != nullptr && *folder != '\0') folders.push_back(folder);
  }
  folders.push_back("/usr/local/cuda");
  if (const char* path = std::getenv("PATH"); path != nullptr) {
    for (absl::string_view place : absl::StrSplit(path, ':', absl::SkipEmpty())) {
      folders.push_back(std::filesystem::path(std::string(place)).parent_path().string());
    }
  }
  std::error_code ignored;
  for (const std::string& folder : folders) {
    if (std::filesystem::exists(folder + "/bin/nvcc", ignored)) return folder;
  }
  return "";
}

// Returns the version of the kernel module: the first word of its line that looks like "550.54.15".
std::string KernelDriver() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::getline(file, line);
  for (absl::string_view word : absl::StrSplit(line, ' ', absl::SkipEmpty())) {
    if (absl::ascii_isdigit(word[0]) && word.find('.') != absl::string_view::npos) return std::string(word);
  }
  return "";
}

GpuFacts DescribeGpu(void* library, int index) {
  constexpr int kMajor = 75, kMinor = 76;
  GpuFacts gpu;
  int device = 0, major = 0, minor = 0;
  char name[256] = "";
  size_t memory = 0;
  CallDriver(library, "cuDeviceGet", &device, index);
  CallDriver(library, "cuDeviceGetName", static_cast<char*>(name), static_cast<int>(sizeof(name)), device);
  CallDriver(library, "cuDeviceTotalMem_v2", &memory, device);
  CallDriver(library, "cuDeviceGetAttribute", &major, kMajor, device);
  CallDriver(library, "cuDeviceGetAttribute", &minor, kMinor, device);
  gpu.name = name;
  gpu.memory_bytes = memory;
  gpu.compute_capability = absl::StrCat(major, ".", minor);
  gpu.unfit = WhyGpuUnfit(name, major, minor);
  return gpu;
}

// Fills in driver and devices. Returns the reason why no GPU is usable; empty: one is.
std::string AskDriver(void* library, CudaFacts& facts) {
  int version = 0;
  CallDriver(library, "cuDriverGetVersion", &version);
  const std::string api = absl::StrCat("CUDA ", CudaVersionText(version));
  facts.driver = facts.driver.empty() ? api : absl::StrCat(facts.driver, ", ", api);
  if (int error = CallDriver(library, "cuInit", 0u); error != 0) {
    constexpr int kNoDevice = 100;
    if (error == kNoDevice) return WhyNoGpu();
    return absl::StrCat("cannot initialize the NVIDIA driver: ", DescribeError(library, error));
  }
  int count = 0;
  if (int error = CallDriver(library, "cuDeviceGetCount", &count); error != 0) {
    return absl::StrCat("cannot get the number of GPUs from the NVIDIA driver: ", DescribeError(library, error));
  }
  for (int i = 0; i < count; ++i) facts.devices.push_back(DescribeGpu(library, i));
  if (std::string why = WhyDriverUnfit(version, BALLAST_CUDA_VERSION); !why.empty()) return why;
  if (count == 0) return WhyNoGpu();
  for (const GpuFacts& gpu : facts.devices) {
    if (gpu.unfit.empty()) return "";
  }
  return facts.devices.front().unfit;
}

std::vector<LibraryFacts> ProbeLibraries() {
  std::vector<LibraryFacts> libraries;
  // A build without CUDA does not know which version to look for.
  if (BALLAST_CUBLAS_MAJOR == 0) return libraries;
  constexpr int kCudnnMajor = 9, kNcclMajor = 2;
  const std::vector<std::string> directories = NvidiaDirectories(BALLAST_CUDA_LIBRARIES, BALLAST_CUDA_VERSION / 1000);
  const auto look = [&](const std::string& product, int major, const std::string& stem, const std::string& use) {
    const std::string file = absl::StrCat(stem, ".so.", major);
    const NvidiaSearchResult found = OpenNvidiaLibrary({product, major, file}, directories);
    libraries.push_back({file, use, stem == "libcublasLt", found.path, found.version, found.problem});
  };
  look("cuBLAS", BALLAST_CUBLAS_MAJOR, "libcublasLt", "matrix products; required for GPUs");
  look("cuBLAS", BALLAST_CUBLAS_MAJOR, "libcublas",
       "the rare matrix products without a cuBLASLt algorithm; they fail without it");
  look("cuDNN", kCudnnMajor, "libcudnn",
       BALLAST_CUDNN_MAJOR == 0
           ? "none: the toolkit of this build had no cuDNN, so convolutions are matrix products"
           : "convolutions; without it, they are matrix products, which take more time and memory");
  look("NCCL", kNcclMajor, "libnccl", "sums over several GPUs; slower without it, on the first GPU");
  return libraries;
}

}  // namespace

std::string WhyLibraryMissing(const std::vector<LibraryFacts>& libraries) {
  for (const LibraryFacts& library : libraries) {
    if (library.needed && library.path.empty()) return library.problem;
  }
  return "";
}

CudaFacts ProbeCuda() {
  CudaFacts facts;
  facts.toolkit = FindToolkit();
  facts.driver = KernelDriver();
  // Never unloaded, because the driver's threads would crash.
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  facts.reason = library == nullptr ? WhyDriverUnfit(0, BALLAST_CUDA_VERSION) : AskDriver(library, facts);
  // A build without CUDA is the first problem to fix.
  if (std::string why = WhyBuildLacksCuda(BALLAST_CUDA_VERSION); !why.empty()) facts.reason = why;
  facts.libraries = ProbeLibraries();
  if (facts.reason.empty()) facts.reason = WhyLibraryMissing(facts.libraries);
  facts.usable = facts.reason.empty();
  return facts;
}

}  // namespace ballast
