// SPDX-License-Identifier: Apache-2.0
#include "worker/model/layers/custom_layer.h"

#include <google/protobuf/text_format.h>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

class Named : public Layer {
 public:
  explicit Named(std::string text) : text_(std::move(text)) {}

  std::string Describe() const override { return text_; }
  ImageShape output() const override { return {1, 1, 1}; }
  LayerTraits traits() const override { return {}; }
  std::vector<Parameter> Parameters() const override { return {}; }
  std::vector<LayerMemory> Memory() const override { return {}; }
  void Forward(const Pass&, Matrix, Matrix) const override {}
  void Backward(const Pass&, Matrix, Matrix, const Matrix*) const override {}

 private:
  const std::string text_;
};

absl::StatusOr<std::unique_ptr<Layer>> MakeScaled(const LayerSite& site, CustomNumbers& numbers) {
  const double beta = numbers.Read("beta").value_or(1);
  const double gamma = numbers.Read("gamma").value_or(2);
  if (beta < 0) return LayerError(site.name, "beta is ", beta, ", want at least 0");
  return std::make_unique<Named>(absl::StrCat("scaled ", beta, " ", gamma));
}

absl::StatusOr<std::unique_ptr<Layer>> MakePlain(const LayerSite&, CustomNumbers&) {
  return std::make_unique<Named>("plain");
}

const CustomLayerType kScaled("scaled", MakeScaled);
const CustomLayerType kPlain("plain", MakePlain);
const CustomLayerType kTwice("twice", MakePlain);
const CustomLayerType kTwiceAgain("twice", MakePlain);

// Returns the description of the layer that the text of a v1.Custom makes, or the error.
std::string Made(const std::string& text) {
  v1::Layer config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, config.mutable_custom())) << text;
  const IdInputs no_ids;
  const auto layer = MakeLayer({config, "custom1", {1, 1, 4}, no_ids});
  return layer.ok() ? (*layer)->Describe() : std::string(layer.status().message());
}

TEST(CustomLayerTest, MakesTheRegisteredTypeFromItsNumbers) {
  EXPECT_EQ(Made("type: 'scaled' numbers { key: 'beta' value: 1.5 } numbers { key: 'gamma' value: -3 }"),
            "scaled 1.5 -3");
  EXPECT_EQ(Made("type: 'scaled'"), "scaled 1 2");
  EXPECT_EQ(Made("type: 'plain'"), "plain");
}

TEST(CustomLayerTest, RefusesAndNamesTheLayer) {
  const struct {
    const char* config;
    const char* error;
  } cases[] = {
      {"type: 'scale'", "custom.type is \"scale\", want plain, scaled or twice"},
      {"type: 'Plain'", "custom.type is \"Plain\", want plain, scaled or twice"},
      {"type: 'twice'", "custom.type \"twice\" is registered twice in this worker, want once"},
      {"type: 'plain' numbers { key: 'beta' value: 1 }", "custom.numbers has \"beta\", want none for plain"},
      {"type: 'scaled' numbers { key: 'bta' value: 1 }", "custom.numbers has \"bta\", want beta or gamma for scaled"},
      {"type: 'scaled' numbers { key: 'b' value: 1 } numbers { key: 'a' value: 1 }",
       "custom.numbers has \"a\" and \"b\", want beta or gamma for scaled"},
      {"type: 'scaled' numbers { key: 'beta' value: nan }", "custom.numbers \"beta\" is nan, want a finite number"},
      {"type: 'scaled' numbers { key: 'beta' value: -inf }", "custom.numbers \"beta\" is -inf, want a finite number"},
      {"type: 'scaled' numbers { key: 'beta' value: -1 }", "beta is -1, want at least 0"},
  };
  for (const auto& [config, error] : cases) {
    EXPECT_EQ(Made(config), absl::StrCat("layer \"custom1\": ", error)) << config;
  }
}

}  // namespace
}  // namespace ballast
