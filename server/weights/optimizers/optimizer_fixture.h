// SPDX-License-Identifier: Apache-2.0
// Configurations of every kind of optimizer, with float64 references.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "ballast/v1/tensor.pb.h"

namespace ballast {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

// A float64 rule for a whole slice: takes update number, gradient, weights and one vector per slot.
using Reference = std::function<void(int t, const Doubles& g, Doubles& w, std::vector<Doubles>& slots)>;

struct OptimizerCase {
  std::string name;
  std::string config;
  int slots;
  Reference reference;
};

void PrintTo(const OptimizerCase& c, std::ostream* out);

// Every kind that tensors may have, some with clipping and weight decay.
const std::vector<OptimizerCase>& OptimizerCases();

// The reference of FTRL with alpha 0.1, beta 1, lambda1 0.5 and lambda2 0.25, and of LAMB at a rate of 0.01 with a
// weight decay of 0.1.
void FtrlRule(int t, double g, double& w, double& z, double& n);
void LambRule(int t, const Doubles& g, Doubles& w, std::vector<Doubles>& slots);

// `config` in text format.
v1::Optimizer OptimizerConfig(const std::string& config);

// Numbers from the standard normal distribution.
Floats Normal(size_t n, int seed);

// The Euclidean norm.
double Norm(const Doubles& values);
Doubles Difference(const Floats& got, const Doubles& want);

}  // namespace ballast
