// SPDX-License-Identifier: Apache-2.0
#include "common/program/nvidia_libraries.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace ballast {
namespace {

std::vector<std::string> Environment(const char* name) {
  const char* const value = std::getenv(name);
  return absl::StrSplit(value == nullptr ? "" : value, ':', absl::SkipEmpty());
}

// Full names of what a directory contains, sorted; empty if it cannot be read.
std::vector<std::string> Entries(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool Exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// Directories that hold Python packages.
std::vector<std::string> SitePackages() {
  std::vector<std::string> roots = Environment("VIRTUAL_ENV");
  for (const std::string& root : Environment("CONDA_PREFIX")) roots.push_back(root);
  for (const std::string& programs : Environment("PATH")) {
    roots.push_back(std::filesystem::path(programs).parent_path().string());
  }
  for (const std::string& home : Environment("HOME")) roots.push_back(absl::StrCat(home, "/.local"));
  std::vector<std::string> sites = Environment("PYTHONPATH");
  for (const std::string& root : roots) {
    for (const std::string& python : Entries(absl::StrCat(root, "/lib"))) {
      if (!absl::StrContains(python, "/lib/python3")) continue;
      for (const char* name : {"/site-packages", "/dist-packages"}) sites.push_back(absl::StrCat(python, name));
    }
  }
  return sites;
}

// Returns the first library of the same name but another version in the directories or in a wheel; empty: none.
std::string FindOtherVersion(const std::string& file, absl::Span<const std::string> directories) {
  std::vector<std::string> all(directories.begin(), directories.end());
  for (const std::string& site : SitePackages()) {
    for (const std::string& wheel : Entries(absl::StrCat(site, "/nvidia"))) all.push_back(absl::StrCat(wheel, "/lib"));
  }
  // "libcublas.so."
  const std::string prefix = file.substr(0, file.rfind('.') + 1);
  for (const std::string& directory : all) {
    for (const std::string& path : Entries(directory)) {
      const std::string name = std::filesystem::path(path).filename().string();
      if (!absl::StartsWith(name, prefix) || name == file) continue;
      const std::string version = name.substr(prefix.size());
      if (std::all_of(version.begin(), version.end(), absl::ascii_isdigit)) return path;
    }
  }
  return "";
}

std::string WhyMissing(const NvidiaProduct& product, absl::Span<const std::string> directories) {
  std::string text = absl::StrCat(product.name, " not found: ", product.file,
                                  " is neither in the loader's search path nor in ", absl::StrJoin(directories, ", "));
  if (const std::string other = FindOtherVersion(product.file, directories); !other.empty()) {
    absl::StrAppend(&text, "; ", other, " is there, but has another major version");
  }
  return absl::StrCat(text, "; install ", product.name, " ", product.major,
                      ", or add its directory to LD_LIBRARY_PATH");
}

// Libraries give their version by cublasGetProperty and the like, without a GPU; NCCL by ncclGetVersion.
std::string VersionOf(void* library, const std::string& file) {
  const std::string name = file.substr(3, file.find('.') - 3);
  int major = 0, minor = 0, patch = 0;
  if (auto get = reinterpret_cast<int (*)(int, int*)>(dlsym(library, (name + "GetProperty").c_str()))) {
    if (get(0, &major) != 0 || get(1, &minor) != 0 || get(2, &patch) != 0) return "";
  } else if (auto version = reinterpret_cast<int (*)(int*)>(dlsym(library, (name + "GetVersion").c_str()))) {
    int number = 0;
    if (version(&number) != 0) return "";
    major = number / 10000, minor = number / 100 % 100, patch = number % 100;
  } else {
    return "";
  }
  return absl::StrCat(major, ".", minor, ".", patch);
}

std::string PathOf(void* library, const std::string& otherwise) {
  struct link_map* map = nullptr;
  const bool known = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr && *map->l_name != '\0';
  return known ? map->l_name : otherwise;
}

}  // namespace

std::vector<std::string> NvidiaDirectories(const std::string& toolkit, int cuda_major) {
  std::vector<std::string> directories;
  const auto add = [&](const std::string& directory) {
    if (std::find(directories.begin(), directories.end(), directory) == directories.end()) {
      directories.push_back(directory);
    }
  };
  if (!toolkit.empty()) add(toolkit);
  for (const std::string& site : SitePackages()) {
    const std::string cuda = absl::StrCat(site, "/nvidia/cu", cuda_major, "/lib");
    // The wheels of cuDNN and NCCL have the same directories for every version of CUDA.
    if (!Exists(cuda)) continue;
    for (const std::string& directory : {cuda, site + "/nvidia/cudnn/lib", site + "/nvidia/nccl/lib"}) {
      if (Exists(directory)) add(directory);
    }
  }
  return directories;
}

NvidiaSearchResult OpenNvidiaLibrary(const NvidiaProduct& product, absl::Span<const std::string> directories) {
  std::vector<std::string> paths = {product.file};
  for (const std::string& directory : directories) paths.push_back(absl::StrCat(directory, "/", product.file));
  std::string broken;
  for (const std::string& path : paths) {
    if (void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      return {library, PathOf(library, path), VersionOf(library, product.file), ""};
    }
    const std::string error = dlerror();
    // A missing file is named first; another name is that of a library that this one needs.
    const bool missing = absl::StartsWith(error, path + ": cannot open shared object file") && !Exists(path);
    if (!missing && broken.empty()) broken = error;
  }
  if (broken.empty()) return {.problem = WhyMissing(product, directories)};
  return {.problem = absl::StrCat(product.name, " cannot be loaded: ", broken, "; install ", product.name, " ",
                                  product.major, " again")};
}

}  // namespace ballast
