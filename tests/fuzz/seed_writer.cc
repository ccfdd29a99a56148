// SPDX-License-Identifier: Apache-2.0
// Writes a fuzz target's seeds for libFuzzer into the directory BALLAST_FUZZ_SEEDS, if it is set. libFuzzer calls
// this before it reads its corpus.
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* folder = std::getenv("BALLAST_FUZZ_SEEDS");
  if (folder == nullptr) return 0;
  int number = 0;
  for (const std::string& seed : ballast::FuzzSeeds()) {
    const std::string path = std::string(folder) + "/seed-" + std::to_string(number++);
    std::ofstream file(path, std::ios::binary);
    if (file << seed && file.flush()) continue;
    std::cerr << "error: cannot write " << path << std::endl;
    std::exit(2);
  }
  return 0;
}
