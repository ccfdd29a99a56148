// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>

namespace ballast {

// Joins the timelines that a run's workers left into the file `path`, which takes their place, and prints where it is.
// What is missing or was left out is told as a warning on `err`: a run is no failure for it.
void JoinTraces(const std::string& run_dir, int workers, const std::string& path, std::ostream& out, std::ostream& err);

}  // namespace ballast
