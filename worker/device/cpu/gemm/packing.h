// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Copies matrices into the order in which the tiles of a product read them.
namespace ballast {

// to[p * to_row + i] = from[i * from_row + p] for i < rows and p < columns.
void Transpose(const float* from, int64_t from_row, int64_t rows, int64_t columns, float* to, int64_t to_row);

// Copies a matrix [depth, columns] into consecutive panels [depth, width]; pads the last one with zeros.
void PackPanels(const float* from, int64_t from_row, int64_t depth, int64_t columns, int64_t width, float* to);
// Copies panels back to a matrix [depth, columns].
void UnpackPanels(const float* from, int64_t depth, int64_t columns, int64_t width, float* to, int64_t to_row);

}  // namespace ballast
