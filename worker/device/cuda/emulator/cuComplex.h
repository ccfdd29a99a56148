// SPDX-License-Identifier: Apache-2.0
#pragma once

// What cuBLAS's headers mention of complex numbers.
struct cuComplex {
  float x, y;
};

struct cuDoubleComplex {
  double x, y;
};
