// SPDX-License-Identifier: Apache-2.0
#include "common/shared_memory/shared_region.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Sides {
  std::shared_ptr<SharedRegion> server, client;
};

Sides MakeSides(uint32_t slots) {
  const std::shared_ptr<SharedRegion> server = SharedRegion::Create(slots).value();
  return {server, SharedRegion::Open(server->Describe()).value()};
}

// Returns Open's error for a changed description.
template <typename Change>
std::string ErrorOf(Change change) {
  const std::shared_ptr<SharedRegion> server = *SharedRegion::Create(2);
  v1::SharedRegion description = server->Describe();
  change(description);
  const auto region = SharedRegion::Open(description);
  EXPECT_TRUE(absl::IsFailedPrecondition(region.status())) << region.status();
  return std::string(region.status().message());
}

TEST(SharedRegionTest, ShowsTheSameBytesToBothSides) {
  const Sides sides = MakeSides(2);
  sides.client->Slot(0)[0] = 'a';
  sides.client->Slot(1)[SharedRegion::kSlotBytes - 1] = 'z';
  EXPECT_EQ(sides.server->Slot(0)[0], 'a');
  EXPECT_EQ(sides.server->Slot(1)[SharedRegion::kSlotBytes - 1], 'z');
}

TEST(SharedRegionTest, IsBorrowedOnlyWhereItIsLentAndOnce) {
  const Sides sides = MakeSides(2);
  EXPECT_FALSE(sides.server->Borrow(0));
  sides.client->Lend(0);
  EXPECT_FALSE(sides.server->Borrow(1));
  EXPECT_TRUE(sides.server->Borrow(0));
  EXPECT_FALSE(sides.server->Borrow(0));
}

TEST(SharedRegionTest, IsTakenBackOnlyWhereTheServerDoesNotUseIt) {
  const Sides sides = MakeSides(1);
  sides.client->Lend(0);
  EXPECT_TRUE(sides.client->TakeBack(0));
  EXPECT_FALSE(sides.server->Borrow(0)) << "it was taken back";
  sides.client->Lend(0);
  ASSERT_TRUE(sides.server->Borrow(0));
  EXPECT_FALSE(sides.client->TakeBack(0));
  sides.server->GiveBack(0);
  EXPECT_TRUE(sides.client->TakeBack(0));
}

TEST(SharedRegionTest, WhatARequestLendsIsTheClientsAgainBeforeOrAfterItIsRead) {
  const Sides sides = MakeSides(1);
  sides.client->Call(0, {.in_pieces = true});
  ASSERT_TRUE(sides.server->TakeCall(0).value_or(SlotRequest()).in_pieces);
  EXPECT_TRUE(sides.server->EndRequestLoan(0)) << "all was read";
  sides.client->WithdrawRequest(0);
  sides.server->Respond(0, {});
  ASSERT_TRUE(sides.client->TakeResponse(0).has_value());

  sides.client->Call(0, {.in_pieces = true});
  ASSERT_TRUE(sides.server->TakeCall(0).has_value());
  sides.client->WithdrawRequest(0);
  EXPECT_FALSE(sides.server->EndRequestLoan(0)) << "the client may have changed what was read";
}

TEST(SharedRegionTest, WhatAResponseLendsIsTheServersAgainOnceItIsRead) {
  const Sides sides = MakeSides(1);
  sides.client->Call(0, {.takes_pieces = true});
  ASSERT_TRUE(sides.server->TakeCall(0).value_or(SlotRequest()).takes_pieces);
  sides.server->Respond(0, {.in_pieces = true});
  EXPECT_TRUE(sides.server->LendsResponse(0));
  ASSERT_TRUE(sides.client->TakeResponse(0).value_or(SlotResponse()).in_pieces);
  EXPECT_TRUE(sides.server->LendsResponse(0)) << "it is not read yet";
  EXPECT_TRUE(sides.client->EndResponseLoan(0));
  EXPECT_FALSE(sides.server->LendsResponse(0));

  sides.client->Call(0, {.takes_pieces = true});
  EXPECT_FALSE(sides.server->LendsResponse(0));
  sides.server->Respond(0, {.in_pieces = true});
  sides.server->WithdrawResponse(0);
  EXPECT_FALSE(sides.client->EndResponseLoan(0)) << "the server may have changed what was read";
}

TEST(SharedRegionTest, MessagesAreInPiecesOnlyIfTheySaySo) {
  const Sides sides = MakeSides(1);
  EXPECT_FALSE(sides.client->takes_pieces());
  sides.server->OfferCalls(/*takes_pieces=*/false);
  EXPECT_TRUE(sides.client->offers_calls());
  EXPECT_FALSE(sides.client->takes_pieces());
  sides.server->OfferCalls(/*takes_pieces=*/true);
  EXPECT_TRUE(sides.client->takes_pieces());
  sides.client->Call(0, {});
  const std::optional<SlotRequest> request = sides.server->TakeCall(0);
  ASSERT_TRUE(request.has_value());
  EXPECT_FALSE(request->in_pieces || request->takes_pieces);
  sides.server->Respond(0, {});
  EXPECT_FALSE(sides.client->TakeResponse(0).value_or(SlotResponse{.in_pieces = true}).in_pieces);
}

TEST(SharedRegionTest, CannotBeCutUnderTheOtherSidesHands) {
  const std::shared_ptr<SharedRegion> server = *SharedRegion::Create(1);
  const int file = open(absl::StrCat("/proc/self/fd/", server->Describe().file()).c_str(), O_RDWR);
  ASSERT_GE(file, 0);
  EXPECT_NE(ftruncate(file, 0), 0);
  close(file);
  server->Slot(0)[0] = 'a';
}

TEST(SharedRegionTest, KeepsItsMemoryWhenTheOtherSideIsGone) {
  Sides sides = MakeSides(1);
  sides.server.reset();
  sides.client->Slot(0)[0] = 'a';
  EXPECT_EQ(sides.client->Slot(0)[0], 'a');
}

TEST(SharedRegionTest, RefusesMemoryThatIsAnotherAreas) {
  EXPECT_THAT(ErrorOf([](auto& region) { region.set_id(region.id() + 1); }), StartsWith("shared memory at"));
}

TEST(SharedRegionTest, RefusesFilesThatAreNoSuchMemory) {
  const int null = open("/dev/null", O_RDWR);
  ASSERT_GE(null, 0);
  EXPECT_THAT(ErrorOf([&](auto& region) { region.set_file(null); }), HasSubstr("is not memory that Ballast shares"));
  close(null);
  EXPECT_THAT(ErrorOf([](auto& region) { region.set_file(1000000); }), HasSubstr("is not memory that Ballast shares"));
}

TEST(SharedRegionTest, RefusesDescriptionsThatDoNotFit) {
  EXPECT_THAT(ErrorOf([](auto& region) { region.set_slots(3); }), HasSubstr("that cannot shrink"));
  EXPECT_THAT(ErrorOf([](auto& region) { region.set_slots(0); }), HasSubstr("got 0 slots"));
  EXPECT_THAT(ErrorOf([](auto& region) { region.set_slots(61); }), HasSubstr("got 61 slots"));
  EXPECT_THAT(ErrorOf([](auto& region) { region.set_slot_bytes(4096); }), HasSubstr("slots of 4096 bytes"));
}

TEST(MachineIdTest, IsTheSameForThisProcessAndNamesItsUser) {
  EXPECT_EQ(MachineId(), MachineId());
  EXPECT_NE(MachineId().find(absl::StrCat(":", geteuid())), std::string::npos) << MachineId();
}

// Returns the parts of MachineId in a process with its own network namespace; empty if the kernel does not allow one.
std::vector<std::string> PartsInAnotherNetwork() {
  int ends[2];
  if (pipe(ends) != 0) return {};
  const pid_t child = fork();
  if (child == 0) {
    // Without root privileges this also needs a user namespace.
    const bool away = unshare(CLONE_NEWNET) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0;
    const std::string id = away ? MachineId() : "";
    _exit(write(ends[1], id.data(), id.size()) == static_cast<ssize_t>(id.size()) ? 0 : 1);
  }
  close(ends[1]);
  char text[256];
  const ssize_t bytes = read(ends[0], text, sizeof(text));
  close(ends[0]);
  waitpid(child, nullptr, 0);
  if (bytes <= 0) return {};
  return absl::StrSplit(absl::string_view(text, bytes), ':');
}

TEST(MachineIdTest, DiffersInAnotherNetworkNamespace) {
  const std::vector<std::string> there = PartsInAnotherNetwork();
  if (there.empty()) GTEST_SKIP() << "the kernel allows no network namespaces";
  const std::vector<std::string> here = absl::StrSplit(MachineId(), ':');
  // The names of namespaces contain a colon too: "pid:[4026531836]".
  ASSERT_EQ(here.size(), 6);
  ASSERT_EQ(there.size(), 6);
  EXPECT_EQ(std::vector(here.begin(), here.begin() + 3), std::vector(there.begin(), there.begin() + 3));
  EXPECT_EQ(here[3], "net");
  EXPECT_NE(here[4], there[4]);
}

}  // namespace
}  // namespace ballast
