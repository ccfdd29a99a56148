// SPDX-License-Identifier: Apache-2.0
#pragma once

// BALLAST_VECTOR_CODE compiles a function for AVX2 and F16C; call it only if UseVectorCode().
// BALLAST_INLINE_BODY marks a body that is compiled into both versions, so that both give the same bits.
#if defined(__x86_64__)
#define BALLAST_VECTOR_CODE __attribute__((target("avx2,f16c")))
#else
#define BALLAST_VECTOR_CODE
#endif
#define BALLAST_INLINE_BODY inline __attribute__((always_inline))

namespace ballast {

// Returns true if this processor has AVX2 and F16C, and no PortableCodeOnly exists.
bool UseVectorCode();

// Forces portable code during its lifetime, for tests. One at a time.
class PortableCodeOnly {
 public:
  PortableCodeOnly();
  ~PortableCodeOnly();
  PortableCodeOnly(const PortableCodeOnly&) = delete;
  PortableCodeOnly& operator=(const PortableCodeOnly&) = delete;
};

}  // namespace ballast
