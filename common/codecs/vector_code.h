// SPDX-License-Identifier: Apache-2.0
#pragma once

// A function marked so is compiled for processors with AVX2 and F16C; it runs only where UseVectorCode() says so.
// A body marked BALLAST_INLINE_BODY is written once and compiled into both, so that both give the same bits.
#if defined(__x86_64__)
#define BALLAST_VECTOR_CODE __attribute__((target("avx2,f16c")))
#else
#define BALLAST_VECTOR_CODE
#endif
#define BALLAST_INLINE_BODY inline __attribute__((always_inline))

namespace ballast {

// Whether this processor has AVX2 and F16C, and no PortableCodeOnly lives.
bool UseVectorCode();

// For tests: while it lives, portable code runs on every processor. One at a time.
class PortableCodeOnly {
 public:
  PortableCodeOnly();
  ~PortableCodeOnly();
  PortableCodeOnly(const PortableCodeOnly&) = delete;
  PortableCodeOnly& operator=(const PortableCodeOnly&) = delete;
};

}  // namespace ballast
