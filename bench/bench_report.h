// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace ballast {

using Json = nlohmann::ordered_json;

// Our result divided by a limit's or a peer's from the same run, with its target.
struct Ratio {
  // Name in JSON: "push_to_tcp_16mib_up".
  std::string name;
  double value = 0;
  double wanted = 0;
  // True if smaller is better, otherwise larger is better.
  bool at_most = false;
  // Description for people: "push at 16 MiB and above, relative to a bare TCP stream".
  std::string what;

  bool reached() const { return at_most ? value <= wanted : value >= wanted; }
};

// The results of a benchmark, for people and for programs. Does not know what was measured. Thread safety: immutable.
struct BenchReport {
  // "transfer".
  std::string benchmark;
  // The options of the run.
  Json settings = Json::object();
  // One object for each line of the table.
  Json rows = Json::array();
  std::vector<Ratio> ratios;
  // Facts that a reader needs to interpret the results, such as a missing peer.
  std::vector<std::string> notes;

  // Prints the machine, the ratios and the notes.
  void PrintConclusion(std::ostream& out) const;
  // The whole report in one line.
  std::string ToJson() const;
};

// Returns 0 for no figures.
double Median(std::vector<double> figures);
// The smallest figure that at least `share` (0 to 1) of the figures do not exceed; 0 for no figures.
double Percentile(std::vector<double> figures, double share);

}  // namespace ballast
