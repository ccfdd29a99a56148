// SPDX-License-Identifier: Apache-2.0
#include "common/simd/large_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "common/simd/finite_floats.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace ballast {
namespace {

constexpr size_t kLine = 64;
// Small enough to be checked from the first-level cache.
constexpr size_t kCheckedBytes = 16 << 10;

size_t BytesUpToLine(const char* address) { return -reinterpret_cast<uintptr_t>(address) % kLine; }

// Before version 2.39, glibc's memcpy copies these many bytes and more with an instruction, `rep movsb`, that has a
// twelfth of its rate on AMD's Zen 3 if the destination is less than so many bytes ahead of the source within a page
// (glibc bug 30994). A large array of malloc or NumPy begins 16 bytes behind the beginning of a page, and what it is
// copied from in shared memory often does so at one.
constexpr size_t kStringBytes = 4 << 10;
constexpr uintptr_t kPage = 4 << 10, kJustAhead = 32;

bool IsJustAhead(const char* to, const char* from) {
  const uintptr_t distance = (reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from)) % kPage;
  return distance > 0 && distance < kJustAhead;
}

// Without memcpy: compilers turn its calls for 16 bytes into loads and stores.
void CopyByLines(const char* from, size_t lines, char* to) {
  for (; lines > 0; --lines, from += kLine, to += kLine) {
    for (size_t at = 0; at < kLine; at += sizeof(uint64_t[2])) {
      uint64_t pair[2];
      std::memcpy(pair, from + at, sizeof(pair));
      std::memcpy(to + at, pair, sizeof(pair));
    }
  }
}

void Copy(const char* from, size_t bytes, char* to) {
  if (bytes >= kStringBytes && IsJustAhead(to, from)) {
    const size_t done = bytes / kLine * kLine;
    CopyByLines(from, done / kLine, to);
    from += done, to += done, bytes -= done;
  }
  // An empty range may have no address.
  if (bytes > 0) std::memcpy(to, from, bytes);
}

bool CopyAndCheck(const char* from, size_t bytes, char* to) {
  Copy(from, bytes, to);
  return AlignedFloatsAreFinite({to, bytes});
}

#if defined(__SSE2__)
// Copies whole lines to the beginning of a line. With kChecks, returns whether all their floats are finite.
template <bool kChecks>
bool Stream(const char* from, size_t lines, char* to) {
  constexpr size_t kAhead = 1024;
  constexpr int kRegisters = kLine / sizeof(__m128i);
  const __m128i exponent = _mm_set1_epi32(0x7f800000);
  __m128i not_finite = _mm_setzero_si128();
  for (; lines > 0; --lines, from += kLine, to += kLine) {
    _mm_prefetch(from + kAhead, _MM_HINT_T0);
    __m128i line[kRegisters];
    for (int i = 0; i < kRegisters; ++i) line[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i);
    for (int i = 0; i < kRegisters; ++i) _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i, line[i]);
    if constexpr (kChecks) {
      for (int i = 0; i < kRegisters; ++i) {
        not_finite = _mm_or_si128(not_finite, _mm_cmpeq_epi32(_mm_and_si128(line[i], exponent), exponent));
      }
    }
  }
  // Such stores are ordered with no other, not even with the one that says that the copy is there.
  _mm_sfence();
  return _mm_movemask_epi8(not_finite) == 0;
}
#endif

}  // namespace

void CopyLarge(absl::string_view from, char* to) {
#if defined(__SSE2__)
  if (from.size() >= kStreamedBytes) {
    const size_t ahead = BytesUpToLine(to);
    Copy(from.data(), ahead, to);
    const size_t streamed = (from.size() - ahead) / kLine * kLine, done = ahead + streamed;
    Stream<false>(from.data() + ahead, streamed / kLine, to + ahead);
    Copy(from.data() + done, from.size() - done, to + done);
    return;
  }
#endif
  Copy(from.data(), from.size(), to);
}

bool CopyLargeAndCheck(absl::string_view from, char* to, CopyTo where) {
  const size_t ahead = std::min(BytesUpToLine(to), from.size());
  bool finite = CopyAndCheck(from.data(), ahead, to);
  size_t done = ahead;
#if defined(__SSE2__)
  if (from.size() >= kStreamedBytes && where == CopyTo::kMemory) {
    const size_t streamed = (from.size() - ahead) / kLine * kLine;
    finite &= Stream<true>(from.data() + ahead, streamed / kLine, to + ahead);
    done += streamed;
  }
#endif
  while (done < from.size()) {
    const size_t bytes = std::min(kCheckedBytes, from.size() - done);
    finite &= CopyAndCheck(from.data() + done, bytes, to + done);
    done += bytes;
  }
  return finite;
}

}  // namespace ballast
