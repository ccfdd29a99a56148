// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>

#include "absl/types/span.h"

namespace ballast {

// `ballast bench BENCHMARK [flags]`: becomes the program ballast_bench, which holds the benchmarks and knows their
// flags. Returns only where there is no such program.
int BenchCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace ballast
