// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/strings/str_cat.h"

namespace ballast {

// A path as it stands in a job file, seen from the current folder; an empty base folder is the current one.
inline std::string DataPath(const std::string& base_folder, const std::string& path) {
  if (base_folder.empty() || (!path.empty() && path[0] == '/')) return path;
  return absl::StrCat(base_folder, "/", path);
}

}  // namespace ballast
