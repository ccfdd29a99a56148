// SPDX-License-Identifier: Apache-2.0
#include "common/program/core_count.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <thread>

#include "common/program/control_groups.h"

namespace ballast {
namespace {

// Microseconds of processor time in each period of so many; no number, or a negative one, is no limit.
double CoresOf(std::istream& quota, std::istream& period) {
  double used = 0, of = 0;
  const bool limited = quota >> used && period >> of && used > 0 && of > 0;
  return limited ? used / of : std::numeric_limits<double>::infinity();
}

}  // namespace

int CoreCount(const std::string& root) {
  double cores = std::max(1u, std::thread::hardware_concurrency());
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) cores = std::min<double>(cores, CPU_COUNT(&allowed));
  const ControlGroups groups = FindControlGroups("cpu", root);
  for (const std::string& folder : groups.unified) {
    // "200000 100000", or "max 100000".
    std::ifstream limit(folder + "/cpu.max");
    cores = std::min(cores, CoresOf(limit, limit));
  }
  for (const std::string& folder : groups.controlled) {
    std::ifstream quota(folder + "/cpu.cfs_quota_us"), period(folder + "/cpu.cfs_period_us");
    cores = std::min(cores, CoresOf(quota, period));
  }
  return std::max(static_cast<int>(std::ceil(cores)), 1);
}

}  // namespace ballast
