// SPDX-License-Identifier: Apache-2.0
#include "common/job/job_source.h"

#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/job/job_config.h"
#include "common/job/job_fields.h"
#include "common/job/job_file.h"
#include "common/job/job_file_validation.h"
#include "common/job/limits.h"

namespace ballast {
namespace {

// True if a path is that of `field` or of a field in it: "policy.sync.quorum" is within "policy.sync".
bool IsWithin(absl::string_view path, absl::string_view field) {
  return absl::ConsumePrefix(&path, field) && (path.empty() || path[0] == '.' || path[0] == '[');
}

// A --set and the path of the field that it has set.
struct Setting {
  std::string text;
  std::string path;
};

// The parts of a job that are read so far, and the job that they make.
class JobAssembly {
 public:
  absl::Status AddText(const std::string& path, bool may_be_standard_input) {
    const bool piped = may_be_standard_input && path == "-";
    auto text = piped ? JobText::ReadStandardInput() : JobText::ReadFile(path);
    if (!text.ok()) return text.status();
    const std::string folder = piped ? "" : std::filesystem::path(path).parent_path().string();
    MergeOver(WithAbsolutePaths((*text)->job(), folder), job_);
    if (!job_.has_policy()) job_.mutable_policy()->mutable_sync();
    texts_.push_back(*std::move(text));
    return absl::OkStatus();
  }

  absl::Status Set(const std::string& setting) {
    absl::StatusOr<std::string> path = SetField(job_, setting);
    if (!path.ok()) return absl::InvalidArgumentError(absl::StrCat("flag --set: ", path.status().message()));
    settings_.push_back({setting, *std::move(path)});
    // Those of other parts are absolute.
    job_ = WithAbsolutePaths(std::move(job_), "");
    return absl::OkStatus();
  }

  // Refuses a --set and a flag that are for the same field, unless they agree on the mode.
  absl::Status CheckFlags(const JobOverrides& overrides) const {
    for (const OverrideFlag& flag : kOverrideFlags) {
      const std::string& value = overrides.*flag.value;
      if (value.empty()) continue;
      for (const Setting& setting : settings_) {
        if (!SetsSame(flag, value, setting.path)) continue;
        return absl::InvalidArgumentError(absl::StrCat("flag --", flag.name, ": got \"", value, "\" and --set ",
                                                       setting.text, ", which are for the ",
                                                       "same field; want one of them"));
      }
    }
    return absl::OkStatus();
  }

  // Returns the job, if it is valid.
  absl::StatusOr<v1::Job> Finish(bool with_data) {
    absl::Status faults = ValidateJob(job_);
    if (faults.ok() && with_data) faults = CheckFiles();
    if (faults.ok()) return job_;
    return PlaceFaults(faults, [this](absl::string_view fault) { return Find(fault); });
  }

 private:
  static bool SetsSame(const OverrideFlag& flag, const std::string& value, absl::string_view path) {
    for (absl::string_view field : absl::StrSplit(flag.fields, ',')) {
      if (IsWithin(field, path)) return true;
      // --mode async replaces the options of another mode.
      const bool of_mode = field == "policy";
      if (of_mode && absl::StrContains(path, '.') && IsWithin(path, field) &&
          !IsWithin(path, absl::StrCat(field, ".", value)) && path != "policy.accept_non_finite") {
        return true;
      }
    }
    return false;
  }

  // Returns what caused a fault: the last --set of the field or of a message around it, or the place in the texts that
  // is nearest to the field.
  std::string Find(absl::string_view fault) const {
    const absl::string_view field = fault.substr(0, fault.find_first_of(" :"));
    for (auto setting = settings_.rbegin(); setting != settings_.rend(); ++setting) {
      if (IsWithin(field, setting->path)) return absl::StrCat("--set ", setting->text, ": ");
    }
    JobText::Place nearest = texts_[0]->Find(fault);
    for (const auto& text : texts_) {
      if (JobText::Place place = text->Find(fault); place.depth >= nearest.depth && place.depth > 0) nearest = place;
    }
    return nearest.text;
  }

  absl::Status CheckFiles() {
    ValidationErrors errors;
    VisitPaths(job_, [&](const std::string& field, std::string& path) {
      std::error_code error;
      if (std::filesystem::exists(std::filesystem::status(path, error))) return;
      errors.Add(absl::InvalidArgumentError(
          absl::StrCat(field, ": ", path, ": ", error.message(),
                       " (relative paths in a file are relative to its directory, others to the current directory)")));
    });
    return errors.ToStatus();
  }

  // The job file first, then those merged over it.
  std::vector<std::unique_ptr<JobText>> texts_;
  std::vector<Setting> settings_;
  v1::Job job_;
};

void FillPool(v1::Pool& pool) {
  if (pool.kernel().empty()) return;
  if (pool.stride().empty()) *pool.mutable_stride() = pool.kernel();
  if (pool.padding().empty()) pool.add_padding(0);
}

void FillConv2d(v1::Conv2d* conv2d) {
  if (conv2d->stride().empty()) conv2d->add_stride(1);
  if (conv2d->padding().empty()) conv2d->add_padding(0);
  if (conv2d->initializer().kind_case() == v1::Initializer::KIND_NOT_SET) {
    conv2d->mutable_initializer()->mutable_he_normal();
  }
}

void FillLayer(v1::Layer& layer) {
  if (layer.has_dense() && layer.dense().initializer().kind_case() == v1::Initializer::KIND_NOT_SET) {
    layer.mutable_dense()->mutable_initializer()->mutable_he_normal();
  }
  if (layer.has_conv2d()) FillConv2d(layer.mutable_conv2d());
  if (layer.has_max_pool()) FillPool(*layer.mutable_max_pool());
  if (layer.has_average_pool()) FillPool(*layer.mutable_average_pool());
  if (!layer.has_residual()) return;
  for (v1::Layer& inner : *layer.mutable_residual()->mutable_layers()) FillLayer(inner);
  for (v1::Layer& inner : *layer.mutable_residual()->mutable_shortcut()) FillLayer(inner);
}

}  // namespace

absl::StatusOr<v1::Job> ResolveJob(const JobSource& source, uint32_t workers) {
  JobAssembly assembly;
  absl::Status status = assembly.AddText(source.path, /*may_be_standard_input=*/true);
  for (const std::string& file : source.set_files) {
    if (status.ok()) status = assembly.AddText(file, /*may_be_standard_input=*/false);
  }
  for (const std::string& setting : source.sets) {
    if (status.ok()) status = assembly.Set(setting);
  }
  if (status.ok()) status = assembly.CheckFlags(source.overrides);
  if (!status.ok()) return status;
  absl::StatusOr<v1::Job> job = assembly.Finish(source.with_data);
  if (job.ok()) job = Override(*std::move(job), source.overrides, workers);
  if (!job.ok()) return job;
  if (absl::Status valid = ValidatePolicy(job->policy(), workers); !valid.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(source.path, ": ", valid.message()));
  }
  return job;
}

v1::Job WithDefaults(v1::Job job) {
  FillNumbers(job);
  for (v1::Layer& layer : *job.mutable_model()->mutable_layers()) FillLayer(layer);
  if (job.training().report_every_steps() == 0) job.mutable_training()->set_report_every_steps(10);
  if (!job.has_policy()) job.mutable_policy()->mutable_sync();
  v1::Codec& codec = *job.mutable_codec();
  if (codec.gradients() == v1::ENCODING_UNSPECIFIED) codec.set_gradients(v1::ENCODING_FP32);
  if (codec.values() == v1::ENCODING_UNSPECIFIED) codec.set_values(v1::ENCODING_FP32);
  return job;
}

std::vector<std::string> ToFlags(const JobSource& source) {
  std::vector<std::string> flags;
  for (const std::string& file : source.set_files) flags.insert(flags.end(), {"--set-file", file});
  for (const std::string& setting : source.sets) flags.insert(flags.end(), {"--set", setting});
  const std::vector<std::string> overrides = ToFlags(source.overrides);
  flags.insert(flags.end(), overrides.begin(), overrides.end());
  return flags;
}

}  // namespace ballast
