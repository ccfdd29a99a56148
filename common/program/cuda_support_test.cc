// SPDX-License-Identifier: Apache-2.0
#include "common/program/cuda_support.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace ballast {
namespace {

TEST(CudaSupportTest, ABuildWithoutCudaSaysSo) {
  EXPECT_EQ(WhyBuildLacksCuda(13000), "");
  EXPECT_EQ(WhyBuildLacksCuda(0), "this build has no CUDA support: no CUDA toolkit was found when it was built");
}

TEST(CudaSupportTest, ADriverRunsItsOwnMajorVersionAndOlderOnes) {
  EXPECT_EQ(WhyDriverUnfit(13000, 13000), "");
  EXPECT_EQ(WhyDriverUnfit(13000, 13010), "");
  EXPECT_EQ(WhyDriverUnfit(14000, 13010), "");
}

TEST(CudaSupportTest, AnOlderDriverIsNamedWithWhatIsWanted) {
  EXPECT_EQ(WhyDriverUnfit(12080, 13010),
            "the NVIDIA driver is too old: it supports CUDA 12.8, want at least 13.0; update the driver to 580 or "
            "newer");
}

TEST(CudaSupportTest, AnExclusiveGpuIsToldWithTheWaysOut) {
  EXPECT_EQ(WhyGpuHeld(2, GpuMode::kShared), "");
  EXPECT_EQ(WhyGpuHeld(2, GpuMode::kExclusive),
            "its compute mode is EXCLUSIVE_PROCESS and another process holds it; stop that process (nvidia-smi names "
            "it), start one worker per GPU, or let an administrator allow several (nvidia-smi -i 2 -c DEFAULT)");
  EXPECT_EQ(WhyGpuHeld(2, GpuMode::kProhibited),
            "its compute mode is PROHIBITED: it computes for no process; an administrator can change that (nvidia-smi "
            "-i 2 -c DEFAULT)");
}

TEST(CudaSupportTest, NoDriverIsNoVersion) {
  EXPECT_EQ(
      WhyDriverUnfit(0, 13000),
      "no NVIDIA driver: libcuda.so.1 was not found; install the driver (in a container, start it with the GPUs)");
}

TEST(CudaSupportTest, ChipsFromTheA100OnFit) {
  EXPECT_EQ(WhyGpuUnfit("NVIDIA A100", 8, 0), "");
  EXPECT_EQ(WhyGpuUnfit("NVIDIA H200", 9, 0), "");
  EXPECT_EQ(WhyGpuUnfit("Tesla T4", 7, 5),
            "the GPU is too old: Tesla T4 has compute capability 7.5, want at least 8.0");
}

TEST(CudaSupportTest, NoGpuNamesTheVariableThatHidesThem) {
  unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(WhyNoGpu(), "the NVIDIA driver finds no GPU; see nvidia-smi");
  setenv("CUDA_VISIBLE_DEVICES", "7", 1);
  EXPECT_EQ(WhyNoGpu(),
            "the NVIDIA driver finds no GPU, and CUDA_VISIBLE_DEVICES is \"7\"; name a GPU there, or unset it");
  unsetenv("CUDA_VISIBLE_DEVICES");
}

}  // namespace
}  // namespace ballast
