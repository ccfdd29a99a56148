// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/library/nccl_library.h"

#include <gtest/gtest.h>
#include <nccl.h>

#include <type_traits>

// If the toolkit has NCCL: checks our table against its header, and loads its library, which needs no GPU.
namespace ballast {
namespace {

static_assert(Nccl::kSuccess == ncclSuccess && Nccl::kFloat32 == ncclFloat32 && Nccl::kSum == ncclSum);
static_assert(sizeof(ncclResult_t) == sizeof(int) && sizeof(ncclDataType_t) == sizeof(int) &&
              sizeof(ncclRedOp_t) == sizeof(int) && sizeof(ncclComm_t) == sizeof(Nccl::Communicator));
static_assert(std::is_same_v<decltype(&ncclReduce), ncclResult_t (*)(const void*, void*, size_t, ncclDataType_t,
                                                                     ncclRedOp_t, int, ncclComm_t, cudaStream_t)>);
static_assert(std::is_same_v<decltype(&ncclCommInitAll), ncclResult_t (*)(ncclComm_t*, int, const int*)>);
static_assert(std::is_same_v<decltype(&ncclCommGetAsyncError), ncclResult_t (*)(ncclComm_t, ncclResult_t*)>);
static_assert(std::is_same_v<decltype(&ncclCommAbort), ncclResult_t (*)(ncclComm_t)>);
static_assert(std::is_same_v<decltype(&ncclCommDestroy), ncclResult_t (*)(ncclComm_t)>);

TEST(NcclLibraryTest, HasTheFunctionsOfItsHeader) {
  const absl::StatusOr<const Nccl*> nccl = LoadNccl();
  ASSERT_TRUE(nccl.ok()) << nccl.status();
  int version = 0;
  EXPECT_EQ((*nccl)->GetVersion(&version), Nccl::kSuccess);
  EXPECT_EQ(version / 10000, 2);
  EXPECT_STREQ((*nccl)->GetErrorString(Nccl::kSuccess), "no error");
}

}  // namespace
}  // namespace ballast
