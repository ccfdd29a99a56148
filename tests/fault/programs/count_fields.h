// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

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

// `Json` is nlohmann's; as a template parameter it spares callers the include.
template <typename Counts, typename Json>
void WriteFields(const Counts& counts, Json& json) {
  for (const NamedCount<Counts>& count : Counts::Fields()) json[count.name] = counts.*count.field;
}

}  // namespace ballast
