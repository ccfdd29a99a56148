// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "tests/fault/durability/disk_faults.h"
#include "tests/fault/programs/program.h"
#include "tests/testing/tensors.h"

namespace ballast {
namespace {

constexpr uint64_t kDiskBytes = 16 << 20;
constexpr size_t kElements = 1000;
// Space that the file system reserved for the log's last page may still take a push or two.
constexpr int kMaxAcceptedWhenFull = 10;
constexpr absl::Duration kRecovery = absl::Seconds(5);

absl::Status Refused(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("cannot mount a small disk: ", what, ": ", std::strerror(errno)));
}

// Owns a memory file system of a given size, visible to this process and to those that it starts later: a disk that
// can be filled. Thread safety: confined to the thread that made it, the main one.
class SmallDisk {
 public:
  // To be called before there are other threads. `folder` exists and is empty. UNAVAILABLE, with the reason, if the
  // kernel does not let this process mount.
  static absl::StatusOr<std::unique_ptr<SmallDisk>> Create(const std::string& folder, uint64_t bytes) {
    if (!EnterNamespaces(CLONE_NEWNS)) return Refused("unshare");
    // Mounts made here must not be visible elsewhere.
    if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return Refused("mount");
    if (mount("none", folder.c_str(), "tmpfs", 0, absl::StrCat("size=", bytes).c_str()) != 0) return Refused("mount");
    return std::unique_ptr<SmallDisk>(new SmallDisk(folder));
  }
  ~SmallDisk() { umount2(folder_.c_str(), MNT_DETACH); }
  SmallDisk(const SmallDisk&) = delete;

  // Takes all the space that is left.
  absl::Status FillUp() {
    const int file = open(filler().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0) return absl::ErrnoToStatus(errno, filler());
    // Fills it to the last byte.
    for (size_t bytes = 1 << 20; bytes > 0;) {
      const std::string zeros(bytes, '\0');
      if (write(file, zeros.data(), bytes) < 0) bytes /= 2;
    }
    const bool full = errno == ENOSPC;
    close(file);
    return full ? absl::OkStatus() : absl::ErrnoToStatus(errno, filler());
  }
  // Frees that space.
  void Free() { unlink(filler().c_str()); }

 private:
  explicit SmallDisk(std::string folder) : folder_(std::move(folder)) {}
  std::string filler() const { return folder_ + "/filler"; }

  const std::string folder_;
};

class Trials {
 public:
  explicit Trials(const DiskFullOptions& options) : options_(options) {}

  absl::StatusOr<DiskFullCounts> Do() {
    auto disk = SmallDisk::Create(options_.folder, kDiskBytes);
    if (!disk.ok()) return disk.status();
    disk_ = *std::move(disk);
    auto server = ServerProcess::Start(options_.server, "127.0.0.1", {"--state_dir", options_.folder + "/state"});
    if (!server.ok()) return server.status();
    server_ = *std::move(server);
    if (absl::Status status = Connect(); !status.ok()) return status;
    for (uint32_t round = 0; round < options_.rounds && counts_.wrong == 0; ++round) {
      if (absl::Status status = Round(); !status.ok()) return status;
      ++counts_.rounds;
    }
    client_.reset();
    if (absl::Status status = server_->End(); !status.ok()) return status;
    return counts_;
  }

 private:
  // Connects as a new incarnation of the only worker.
  absl::Status Connect() {
    ClientOptions options;
    options.shards = {server_->address()};
    options.job = "full";
    options.policy.mutable_async();
    options.durability.set_mode(options_.mode);
    options.incarnation = ++incarnation_;
    options.shared_memory = false;
    // A full disk is a transient error, so the client retries until this timeout; the test wants the final error.
    options.retry_timeout = absl::Milliseconds(300);
    auto client = Join(std::move(options), {SgdSpec(0, "w", kElements)});
    if (!client.ok()) return client.status();
    client_ = *std::move(client);
    step_ = 0;
    return absl::OkStatus();
  }

  absl::Status Round() {
    for (int i = 0; i < 10; ++i) {
      if (absl::Status status = Push(); !status.ok()) return status;
    }
    if (absl::Status status = disk_->FillUp(); !status.ok()) return status;
    absl::Status status = Push();
    for (int i = 0; status.ok() && i < kMaxAcceptedWhenFull; ++i) status = Push();
    const absl::Status again = Push();
    for (const absl::Status& refused : {status, again}) {
      if (!absl::IsResourceExhausted(refused)) Wrong(absl::StrCat("push to a full disk: ", refused.ToString()));
      counts_.pushes_refused += absl::IsResourceExhausted(refused);
    }
    CheckWeights("full disk");
    if (!server_->Runs()) Wrong(absl::StrCat("the server has ended: ", server_->output()));

    disk_->Free();
    const absl::Time freed = absl::Now();
    do {
      status = Push();
    } while (!status.ok() && absl::Now() < freed + kRecovery);
    if (!status.ok()) Wrong(absl::StrCat("push after space was freed: ", status.ToString()));
    counts_.recovery_seconds.push_back(absl::ToDoubleSeconds(absl::Now() - freed));
    CheckWeights("after space was freed");

    // The log must not contain any refused push, either.
    if (absl::Status killed = server_->Kill(); !killed.ok()) return killed;
    if (absl::Status restarted = server_->Restart(); !restarted.ok()) return restarted;
    if (absl::Status connected = Connect(); !connected.ok()) return connected;
    CheckWeights("after a restart");
    return absl::OkStatus();
  }

  // Pushes once; counts the push if it was accepted.
  absl::Status Push() {
    const std::vector<TensorGradient> from = {{0, ones_}};
    const absl::Status status = client_->Push(step_++, 1, from).Get().status();
    taken_ += status.ok();
    return status;
  }

  void CheckWeights(const char* when) {
    std::vector<float> values(kElements);
    const std::vector<TensorValues> to = {{0, absl::MakeSpan(values)}};
    const absl::Status pulled = client_->Pull(0, to).Get().status();
    if (!pulled.ok()) return Wrong(absl::StrCat(when, ", pull: ", pulled.ToString()));
    const auto differs = [&](float value) { return value != -static_cast<float>(taken_); };
    const auto wrong = std::find_if(values.begin(), values.end(), differs);
    if (wrong != values.end()) Wrong(absl::StrCat(when, ": got ", *wrong, " after ", taken_, " accepted pushes"));
  }

  void Wrong(const std::string& what) {
    if (counts_.wrong++ == 0) counts_.first_wrong = what;
  }

  const DiskFullOptions options_;
  const std::vector<float> ones_ = std::vector<float>(kElements, 1);
  std::unique_ptr<SmallDisk> disk_;
  std::unique_ptr<ServerProcess> server_;
  std::unique_ptr<Client> client_;
  uint64_t incarnation_ = 0, step_ = 0, taken_ = 0;
  DiskFullCounts counts_;
};

}  // namespace

void DiskFullCounts::Add(const DiskFullCounts& other) {
  AddFields(other, *this);
  if (first_wrong.empty()) first_wrong = other.first_wrong;
  recovery_seconds.insert(recovery_seconds.end(), other.recovery_seconds.begin(), other.recovery_seconds.end());
}

nlohmann::ordered_json DiskFullCounts::ToJson() const {
  nlohmann::ordered_json json = JsonOf(*this);
  if (wrong > 0) json["first_wrong"] = first_wrong;
  AddQuantiles("recovery_seconds", recovery_seconds, json);
  return json;
}

absl::StatusOr<DiskFullCounts> FillDisks(const DiskFullOptions& options) { return Trials(options).Do(); }

}  // namespace ballast
