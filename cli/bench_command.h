// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>

#include "absl/types/span.h"

namespace ballast {

// `ballast bench BENCHMARK [flags]`: replaces this process with ballast_bench, which contains the benchmarks and parses
// their flags. Returns only if that program cannot be found or run.
int BenchCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace ballast
