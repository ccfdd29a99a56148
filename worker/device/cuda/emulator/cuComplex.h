// SPDX-License-Identifier: Apache-2.0
#pragma once

// The complex types that cuBLAS's headers mention.
struct cuComplex {
  float x, y;
};

struct cuDoubleComplex {
  double x, y;
};
