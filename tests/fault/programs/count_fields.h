// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace ballast {

// One count of a struct, and its name in JSON. The struct's Fields() lists the counts that are summed and printed as
// they are; other fields are the struct's own concern.
template <typename Counts>
struct NamedCount {
  const char* name;
  uint64_t Counts::*field;
};

template <typename Counts>
void AddFields(const Counts& from, Counts& to) {
  for (const NamedCount<Counts>& count : Counts::Fields()) to.*count.field += from.*count.field;
}

// `Json` is a parameter so that only callers need its definition.
template <typename Counts, typename Json = nlohmann::ordered_json>
Json JsonOf(const Counts& counts) {
  Json json;
  for (const NamedCount<Counts>& count : Counts::Fields()) json[count.name] = counts.*count.field;
  return json;
}

// The q-quantile of the values, 0 <= q <= 1; 0 if there are none.
double Quantile(std::vector<double> values, double q);

// Adds NAME_p50, NAME_p95 and NAME_max.
void AddQuantiles(const char* name, const std::vector<double>& values, nlohmann::ordered_json& json);

}  // namespace ballast
