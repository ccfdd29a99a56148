// SPDX-License-Identifier: Apache-2.0
#include "common/shared_memory/shared_heap.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/shared_memory/shared_floats.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

constexpr size_t kPage = SharedHeap::kLeastBytes;

absl::string_view BytesAt(const void* memory, size_t bytes) { return {static_cast<const char*>(memory), bytes}; }

// Opens the heap's file as another process would.
int OpenFile(const SharedHeap& heap, int flags) {
  return open(absl::StrCat("/proc/self/fd/", heap.Describe()->file).c_str(), flags);
}

TEST(SharedHeapTest, OthersReadWhatItsOwnerWrites) {
  SharedHeap heap(8 * kPage);
  char* const memory = static_cast<char*>(heap.Allocate(kPage + 1));
  ASSERT_NE(memory, nullptr);
  std::memcpy(memory + kPage - 2, "word", 4);
  const uint64_t offset = *heap.Find({memory + kPage - 2, 4});
  const auto view = *SharedHeapView::Open(*heap.Describe());
  EXPECT_EQ(view->At(offset, 4), "word");
  const auto reader = *SharedHeapReader::Open(*heap.Describe());
  EXPECT_EQ(reader->At(offset, 4), "word");
  std::string read(4, '\0');
  ASSERT_TRUE(reader->Read(offset, absl::MakeSpan(read)));
  EXPECT_EQ(read, "word");
  memory[kPage - 2] = 'W';
  EXPECT_EQ(view->At(offset, 4), "Word");
}

TEST(SharedHeapTest, GivesEachBlockItsOwnMemory) {
  SharedHeap heap(9 * kPage);
  std::vector<char*> blocks;
  for (size_t i = 0; i < 4; ++i) blocks.push_back(static_cast<char*>(heap.Allocate(kPage + 1 + i)));
  EXPECT_EQ(heap.Allocate(kPage), nullptr) << "the first page has the id";
  for (size_t i = 0; i < 4; ++i) std::memset(blocks[i], static_cast<int>(i), kPage + 1 + i);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks[i]) % kPage, 0u);
    EXPECT_EQ(std::string(blocks[i], kPage + 1 + i), std::string(kPage + 1 + i, static_cast<char>(i)));
  }
}

TEST(SharedHeapTest, FreedNeighborsBecomeOnePart) {
  // In every order of freeing.
  std::vector<size_t> order = {0, 1, 2};
  do {
    SharedHeap heap(4 * kPage);
    void* const blocks[] = {heap.Allocate(kPage), heap.Allocate(kPage), heap.Allocate(kPage)};
    EXPECT_EQ(heap.Allocate(kPage), nullptr);
    for (size_t i : order) heap.Free(blocks[i], kPage);
    EXPECT_EQ(heap.Allocate(3 * kPage), blocks[0]);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(SharedHeapTest, UsesFreedMemoryFirst) {
  SharedHeap heap(64 * kPage);
  void* const first = heap.Allocate(2 * kPage);
  void* const second = heap.Allocate(kPage);
  heap.Free(first, 2 * kPage);
  EXPECT_EQ(heap.Allocate(kPage), first);
  EXPECT_EQ(heap.Allocate(kPage), static_cast<char*>(first) + kPage);
  EXPECT_EQ(heap.Allocate(kPage), static_cast<char*>(second) + kPage);
}

TEST(SharedHeapTest, HasNoRoomForSmallOrTooLargeBlocks) {
  SharedHeap heap(4 * kPage);
  EXPECT_EQ(heap.Allocate(kPage - 1), nullptr);
  EXPECT_EQ(heap.Allocate(4 * kPage), nullptr);
  EXPECT_EQ(heap.Allocate(SIZE_MAX), nullptr);
  EXPECT_NE(heap.Allocate(3 * kPage), nullptr);
}

TEST(SharedHeapTest, FindsOnlyBytesThatAreAllInIt) {
  SharedHeap heap(4 * kPage);
  const char* const memory = static_cast<char*>(heap.Allocate(3 * kPage));
  const std::string elsewhere(10, 'a');
  EXPECT_EQ(heap.Find(elsewhere), std::nullopt);
  EXPECT_EQ(heap.Find({memory, 3 * kPage}), kPage);
  EXPECT_EQ(heap.Find({memory + 1, 3 * kPage}), std::nullopt);
}

// Whoever may read the values must not be able to change them, or to end this process.
TEST(SharedHeapTest, OthersCannotChangeIt) {
  SharedHeap heap(4 * kPage);
  std::memset(heap.Allocate(kPage), 'a', kPage);
  const int file = OpenFile(heap, O_RDWR);
  ASSERT_GE(file, 0);
  EXPECT_LT(pwrite(file, "b", 1, kPage), 0);
  EXPECT_EQ(mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), MAP_FAILED);
  EXPECT_NE(ftruncate(file, 0), 0);
  EXPECT_NE(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, kPage, kPage), 0);
  close(file);
  EXPECT_EQ(*(*SharedHeapView::Open(*heap.Describe()))->At(kPage, 1), "a");
}

// Pages that a reader has found do not become others', which reading them would make its own.
TEST(SharedHeapTest, ItsOwnerCannotGivePagesBack) {
  SharedHeap heap(4 * kPage);
  void* const memory = heap.Allocate(kPage);
  std::memset(memory, 'a', kPage);
  EXPECT_NE(madvise(memory, kPage, MADV_REMOVE), 0);
  const int file = static_cast<int>(heap.Describe()->file);
  EXPECT_NE(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, kPage, kPage), 0);
  EXPECT_NE(ftruncate(file, kPage), 0);
  EXPECT_EQ((*SharedHeapReader::Open(*heap.Describe()))->At(kPage, 1), "a");
}

TEST(SharedHeapTest, ReadersStayInside) {
  SharedHeap heap(4 * kPage);
  const auto reader = *SharedHeapReader::Open(*heap.Describe());
  const auto view = *SharedHeapView::Open(*heap.Describe());
  char bytes[2];
  EXPECT_TRUE(reader->Read(4 * kPage - 2, absl::MakeSpan(bytes)));
  EXPECT_TRUE(view->At(4 * kPage - 2, 2).has_value());
  for (const uint64_t offset : {uint64_t{4 * kPage - 1}, uint64_t{4 * kPage}, uint64_t{INT64_MAX}, UINT64_MAX}) {
    EXPECT_FALSE(reader->Read(offset, absl::MakeSpan(bytes))) << offset;
    EXPECT_FALSE(view->At(offset, 2).has_value()) << offset;
    EXPECT_FALSE(reader->At(offset, 2).has_value()) << offset;
  }
  EXPECT_FALSE(view->At(2, UINT64_MAX).has_value());
}

TEST(SharedHeapTest, ReadingMemoryThatWasNeverWrittenAllocatesNone) {
  SharedHeap heap(1024 * kPage);
  const auto reader = *SharedHeapReader::Open(*heap.Describe());
  for (const auto& [page, pages] : {std::pair(1, 1), std::pair(0, 2), std::pair(0, 1024), std::pair(1023, 1)}) {
    EXPECT_EQ(reader->At(page * kPage, pages * kPage), std::nullopt);
  }
  EXPECT_TRUE(reader->At(0, kPage).has_value()) << "it has the id";
  std::string all(1024 * kPage, 'a');
  ASSERT_TRUE(reader->Read(0, absl::MakeSpan(all)));
  EXPECT_EQ(all[kPage], '\0');
  const int file = OpenFile(heap, O_RDONLY);
  struct stat found = {};
  ASSERT_EQ(fstat(file, &found), 0);
  close(file);
  EXPECT_LE(found.st_blocks * 512, static_cast<int64_t>(kPage)) << "only the page with the id";
}

// A reader remembers what it has found in memory, which must not be more.
TEST(SharedHeapTest, WhatIsBesidePagesInMemoryIsNotThereYet) {
  constexpr int kPages = 5000;
  SharedHeap heap(kPages * kPage);
  char* const memory = static_cast<char*>(heap.Allocate((kPages - 1) * kPage)) - kPage;
  const auto reader = *SharedHeapReader::Open(*heap.Describe());
  const auto is_there = [&](int page, int pages) { return reader->At(page * kPage, pages * kPage).has_value(); };
  // More parts than a reader remembers.
  for (int page = 1; page + 1 < kPages; page += 2) memory[page * kPage] = 'a';
  for (int round = 0; round < 2; ++round) {
    for (int page = 1; page + 2 < kPages; page += 2) {
      EXPECT_TRUE(is_there(page, 1)) << page;
      EXPECT_FALSE(is_there(page + 1, 1)) << page;
      EXPECT_FALSE(is_there(page, 2)) << page;
      EXPECT_FALSE(is_there(page + 1, 2)) << page;
    }
  }
  memory[4 * kPage] = 'a';
  EXPECT_TRUE(is_there(3, 3));
  EXPECT_TRUE(is_there(3, 3));
  EXPECT_FALSE(is_there(2, 4));
  EXPECT_FALSE(is_there(3, 4));
  EXPECT_TRUE(reader->At(4 * kPage - 1, kPage + 2).has_value());
}

TEST(SharedHeapTest, OpensNothingButTheHeapDescribed) {
  SharedHeap heap(4 * kPage), other(4 * kPage);
  const auto error = [&](auto change) {
    HeapDescription description = *heap.Describe();
    change(description);
    const absl::Status status = SharedHeapReader::Open(description).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_EQ(SharedHeapView::Open(description).status(), status);
    return std::string(status.message());
  };
  EXPECT_THAT(error([&](auto& heap) { heap.file = other.Describe()->file; }), HasSubstr("the id of another heap"));
  EXPECT_THAT(error([](auto& heap) { heap.bytes += 1; }), HasSubstr("that cannot shrink"));
  EXPECT_THAT(error([](auto& heap) { heap.file = 0; }), HasSubstr("is not memory that Ballast shares"));
  EXPECT_THAT(error([](auto& heap) { heap.process = 0; }), HasSubstr("is not memory that Ballast shares"));
  // A file of that name that its owner could still cut.
  const int forged = memfd_create("ballast-shared-heap", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(forged, 4 * kPage), 0);
  EXPECT_THAT(error([&](auto& heap) { heap.file = forged; }), HasSubstr("that cannot shrink"));
  // One that it could still make holes in.
  ASSERT_EQ(fcntl(forged, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  EXPECT_THAT(error([&](auto& heap) { heap.file = forged; }), HasSubstr("that cannot shrink"));
  close(forged);
}

// Otherwise, a few files of that size, which cost a stranger nothing, would leave this process no address.
TEST(SharedHeapTest, AReaderDoesNotMapAHugeHeap) {
  constexpr uint64_t kBytes = uint64_t{1} << 45;
  const int huge = memfd_create("ballast-shared-heap", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(huge, kBytes), 0);
  const uint64_t id = 7;
  ASSERT_EQ(pwrite(huge, &id, sizeof(id), 0), sizeof(id));
  ASSERT_EQ(fcntl(huge, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE), 0);
  const auto reader =
      SharedHeapReader::Open({id, static_cast<uint32_t>(getpid()), static_cast<uint32_t>(huge), kBytes});
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->At(0, 1), std::nullopt);
  char first = 0;
  EXPECT_TRUE((*reader)->Read(0, {&first, 1}));
  EXPECT_EQ(first, 7);
  close(huge);
  // Others are mapped as before, however many have come and gone.
  SharedHeap heap(uint64_t{1} << 38);
  std::memset(heap.Allocate(kPage), 'a', kPage);
  for (int i = 0; i < 80; ++i) EXPECT_EQ((*SharedHeapReader::Open(*heap.Describe()))->At(kPage, 1), "a") << i;
}

TEST(SharedHeapTest, AViewOutlivesTheHeap) {
  auto heap = std::make_unique<SharedHeap>(4 * kPage);
  std::memset(heap->Allocate(kPage), 'a', kPage);
  const auto view = *SharedHeapView::Open(*heap->Describe());
  heap.reset();
  EXPECT_EQ(*view->At(kPage, 3), "aaa");
}

TEST(SharedHeapTest, ThisProcessHasOne) {
  void* const memory = SharedHeap::OfProcess().Allocate(kPage);
  ASSERT_NE(memory, nullptr);
  EXPECT_TRUE(SharedHeap::OfProcess().Find(BytesAt(memory, kPage)).has_value());
  SharedHeap::OfProcess().Free(memory, kPage);
}

TEST(SharedFloatsTest, AreZeroAndInTheHeapIfThatHasRoom) {
  for (int round = 0; round < 2; ++round) {
    SharedFloats large(kPage), small(3);
    EXPECT_TRUE(SharedHeap::OfProcess().Find(BytesAt(large.data(), kPage * sizeof(float))).has_value());
    EXPECT_FALSE(SharedHeap::OfProcess().Find(BytesAt(small.data(), 3 * sizeof(float))).has_value());
    EXPECT_EQ(std::vector<float>(large.span().begin(), large.span().end()), std::vector<float>(kPage));
    EXPECT_EQ(std::vector<float>(small.span().begin(), small.span().end()), std::vector<float>(3));
    // The next round may get the same memory.
    std::fill(large.span().begin(), large.span().end(), 1.0f);
    SharedFloats moved = std::move(large);
    EXPECT_EQ(moved.span()[kPage - 1], 1);
  }
}

}  // namespace
}  // namespace ballast
