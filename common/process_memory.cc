// SPDX-License-Identifier: Apache-2.0
#include "common/process_memory.h"

#include <malloc.h>

namespace ballast {

void KeepFreedMemory() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
}

}  // namespace ballast
