// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>

namespace ballast {

// Merges the timelines of a run's workers into the file `path`, deletes the originals, and prints the path. Missing
// timelines and other errors are only warnings on `err`, because they do not make the run a failure.
void JoinTraces(const std::string& run_dir, int workers, const std::string& path, std::ostream& out, std::ostream& err);

}  // namespace ballast
