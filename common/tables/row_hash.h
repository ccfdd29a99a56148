// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// The hash of a row, which is also its place in the order of rows: docs/protocol/wire_protocol.md, "Order of rows".
// It is a bijection for each table, so every id is legal and the hash can stand for the id.
namespace ballast {

// Hash of row `id` of the table. All arithmetic is modulo 2^64.
constexpr uint64_t RowHash(uint64_t id, uint32_t table_id) {
  uint64_t h = id ^ (uint64_t{table_id} * 0x9e3779b97f4a7c15);
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9;
  h = (h ^ (h >> 27)) * 0x94d049bb133111eb;
  return h ^ (h >> 31);
}

// Inverse of RowHash: the id of the table's row with that hash. The factors are the inverses of RowHash's factors.
constexpr uint64_t RowIdOf(uint64_t hash, uint32_t table_id) {
  uint64_t h = (hash ^ (hash >> 31) ^ (hash >> 62)) * 0x319642b2d24d8ec3;
  h = (h ^ (h >> 27) ^ (h >> 54)) * 0x96de1b173f119089;
  h = h ^ (h >> 30) ^ (h >> 60);
  return h ^ (uint64_t{table_id} * 0x9e3779b97f4a7c15);
}

// Range of the row, 0 to 2^range_bits - 1. `range_bits`: 1 to 32.
constexpr uint32_t RangeOf(uint64_t hash, int range_bits) { return static_cast<uint32_t>(hash >> (64 - range_bits)); }

}  // namespace ballast
