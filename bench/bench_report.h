// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace ballast {

using Json = nlohmann::ordered_json;

// A figure of ours over a limit's or a peer's from the same run, and what it should be.
struct Ratio {
  // As JSON names it: "push_to_tcp_16mib_up".
  std::string name;
  double value = 0;
  double wanted = 0;
  // The smaller the better; else the larger.
  bool at_most = false;
  // For people: "push at 16 MiB and above, of a bare TCP stream".
  std::string what;

  bool reached() const { return at_most ? value <= wanted : value >= wanted; }
};

// What a benchmark found, for people and for programs. Knows nothing of what was measured.
// Thread safety: immutable.
struct BenchReport {
  // "transfer".
  std::string benchmark;
  // What was asked for.
  Json settings = Json::object();
  // An object for each line of the table.
  Json rows = Json::array();
  std::vector<Ratio> ratios;
  // What a reader must know to read the figures rightly, such as a peer that is missing.
  std::vector<std::string> notes;

  // The machine, the ratios, the notes.
  void PrintConclusion(std::ostream& out) const;
  // All of it in one line.
  std::string ToJson() const;
};

// The figure in the middle; 0 for none.
double Median(std::vector<double> figures);
// The smallest that `share` (0 to 1) of them do not exceed; 0 for none.
double Percentile(std::vector<double> figures, double share);

}  // namespace ballast
