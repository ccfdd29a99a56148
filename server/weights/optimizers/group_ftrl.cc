// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "server/weights/optimizers/ftrl_proximal.h"
#include "server/weights/optimizers/optimizer_kind.h"
#include "server/weights/optimizers/row_loop.h"

namespace ballast {
namespace {

// FtrlProximal with a group lasso for each row (sources: tensor.proto): w = -(1 - k) * u / (P + l2), with
// k = group_lasso * sqrt(dim) / |u|, or 1 if that is more. As in Ftrl, the previous P is not needed. With
// absorbed(z) = clamp(z, l1) + k * u, the part of z that the penalties absorb:
//   z = absorbed(z) + g - (P + l2) * w
//   w = 0 if k = 1 or |z| <= l1, otherwise w - (g + absorbed(previous z) - absorbed(z)) / (P + l2)
// With a group_lasso of 0 that is Ftrl. k is known only after the last element, so a row is read three times and
// written once.
struct GroupFtrl {
  static constexpr bool kNeedsRate = true;
  static constexpr bool kDecaysWeightsItself = false;

  explicit GroupFtrl(const v1::Optimizer& config)
      : learning_rate(config.group_ftrl().learning_rate()),
        group_lasso(config.group_ftrl().group_lasso()),
        proximal(config.group_ftrl()) {}

  static int SlotFloats(int dim) { return 2 * dim; }

  struct Element {
    FtrlProximal::Element proximal;
    float group_lasso;

    // An element between the reads.
    struct Moved {
      float g;
      float from;
      // absorbed(previous z).
      float absorbed;
      float z;
      float n;
      float weight;
    };

    ABSL_ATTRIBUTE_ALWAYS_INLINE void operator()(const RowArrays& row) const {
      const RowArrays r = row;
      float* const zs = r.slots;
      float* const ns = r.slots + r.dim;
      const float before = Share(r.dim, [&](size_t i) ABSL_ATTRIBUTE_ALWAYS_INLINE { return zs[i]; });
      const auto move = [&](size_t i) ABSL_ATTRIBUTE_ALWAYS_INLINE {
        const float g = r.filter(r.gradient[i], r.weights[i]);
        const float n = ns[i] + g * g;
        const float weight = proximal.Weight(n);
        const float from = proximal.trust * r.weights[i];
        const float absorbed = Absorbed(zs[i], before);
        return Moved{g, from, absorbed, absorbed + g - weight * from, n, weight};
      };
      const float after = Share(r.dim, [&](size_t i) ABSL_ATTRIBUTE_ALWAYS_INLINE { return move(i).z; });
      BALLAST_INDEPENDENT_ITERATIONS
      for (size_t i = 0; i < r.dim; ++i) {
        const Moved moved = move(i);
        const float step =
            (moved.g + (moved.absorbed - Absorbed(moved.z, after))) / (moved.weight > 0 ? moved.weight : 1.0f);
        const bool zero = std::fabs(moved.z) <= proximal.l1 || after == 1;
        r.weights[i] = zero ? 0.0f : moved.from - step;
        zs[i] = moved.z;
        ns[i] = moved.n;
      }
    }

    // k of the row whose element i has z(i). NaN if a z is NaN.
    template <typename Z>
    ABSL_ATTRIBUTE_ALWAYS_INLINE float Share(size_t dim, Z z) const {
      SquareSum squares;
      const auto take = [&](size_t i, size_t lane) ABSL_ATTRIBUTE_ALWAYS_INLINE {
        const float x = z(i);
        squares.Take(lane, x - proximal.Clamp(x));
      };
      SquareSum::ForEachLane(0, dim, take);
      const double norm = squares.Norm();
      const double most = group_lasso * std::sqrt(static_cast<double>(dim));
      return norm <= most ? 1.0f : static_cast<float>(most / norm);
    }

    ABSL_ATTRIBUTE_ALWAYS_INLINE float Absorbed(float z, float share) const {
      const float clamped = proximal.Clamp(z);
      return clamped + share * (z - clamped);
    }
  };

  Element For(const OptimizerStep& step) const { return {proximal.For(step), group_lasso}; }

  float learning_rate;
  float group_lasso;
  FtrlProximal proximal;
};

}  // namespace

OptimizerKind GroupFtrlKind() { return {nullptr, MakeRowLoop<GroupFtrl>}; }

}  // namespace ballast
