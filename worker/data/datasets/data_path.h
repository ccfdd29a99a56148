// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/strings/str_cat.h"

namespace ballast {

// Resolves a relative path of a job file against `base_folder`; empty: the current directory.
inline std::string DataPath(const std::string& base_folder, const std::string& path) {
  if (base_folder.empty() || (!path.empty() && path[0] == '/')) return path;
  return absl::StrCat(base_folder, "/", path);
}

}  // namespace ballast
