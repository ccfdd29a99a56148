// SPDX-License-Identifier: Apache-2.0
#include "common/codecs/vector_code.h"

#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ballast {
namespace {

bool ProcessorHasIt() {
#if defined(__x86_64__)
  // Clang 14's __builtin_cpu_supports does not know f16c. Its avx2 check also asks the operating system.
  unsigned int eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __builtin_cpu_supports("avx2") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
#else
  return false;
#endif
}

std::atomic<bool>& Switch() {
  static std::atomic<bool> use{ProcessorHasIt()};
  return use;
}

}  // namespace

bool UseVectorCode() { return Switch().load(std::memory_order_relaxed); }

PortableCodeOnly::PortableCodeOnly() { Switch().store(false); }
PortableCodeOnly::~PortableCodeOnly() { Switch().store(ProcessorHasIt()); }

}  // namespace ballast
