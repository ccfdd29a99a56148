// SPDX-License-Identifier: Apache-2.0
#include "cli/page/process_scraper.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/security/tokens.h"
#include "common/storage/file.h"

namespace ballast {
namespace {

constexpr int kThreads = 8;
constexpr absl::Duration kRetry = absl::Seconds(5);

}  // namespace

std::vector<ProcessScraper::Scrape> ProcessScraper::ScrapeAll(absl::Duration timeout) {
  FindProcesses();
  std::vector<Process*> processes;
  std::vector<Scrape> scrapes;
  for (auto& [name, process] : processes_) {
    processes.push_back(&process);
    scrapes.push_back({.process = name});
  }
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < processes.size(); i = next++) Scrape1(*processes[i], timeout, scrapes[i]);
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < std::min<size_t>(kThreads, processes.size()); ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  return scrapes;
}

void ProcessScraper::FindProcesses() {
  const std::string security = absl::StrCat(run_dir_, "/security/");
  std::error_code error;
  const std::string authority = std::filesystem::exists(security + "ca.pem", error) ? security + "ca.pem" : "";
  for (std::filesystem::directory_iterator file(run_dir_ + "/logs", error), end; !error && file != end;
       file.increment(error)) {
    if (file->path().extension() != ".http") continue;
    const std::string name = file->path().stem().string();
    const std::string address(absl::StripAsciiWhitespace(ReadFile(file->path().string()).value_or("")));
    Process& process = processes_[name];
    if (address.empty() || (process.address == address && process.client != nullptr)) continue;
    process.address = address;
    HttpClient::Options options = {.address = address, .authorities = authority};
    if (!authority.empty()) options.token = LoadClientToken(security + "reader.token").value_or("");
    auto client = HttpClient::Open(std::move(options));
    process.status = client.status();
    process.client = client.ok() ? *std::move(client) : nullptr;
    process.next = absl::InfinitePast();
  }
}

void ProcessScraper::Scrape1(Process& process, absl::Duration timeout, Scrape& scrape) const {
  scrape.status = process.status;
  if (process.client == nullptr || absl::Now() < process.next) {
    if (scrape.status.ok()) scrape.status = absl::UnavailableError("has no address yet");
    return;
  }
  const absl::StatusOr<HttpResponse> page = process.client->Get("/metrics", timeout);
  scrape.time = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  process.status = page.status();
  if (page.ok() && page->status != 200) {
    process.status = absl::UnavailableError(absl::StrCat(process.address, ": got status ", page->status, ": ",
                                                         absl::StripAsciiWhitespace(page->body.substr(0, 200))));
  }
  scrape.status = process.status;
  if (absl::IsDeadlineExceeded(process.status)) process.next = absl::Now() + kRetry;
  if (process.status.ok()) scrape.samples = ParseMetricsText(page->body, wanted_);
}

}  // namespace ballast
