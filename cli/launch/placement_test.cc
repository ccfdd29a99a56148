// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/placement.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;

// Hosts a with 1 worker, b with 2 and c with none; 4 servers.
LaunchPlan Plan() {
  LaunchPlan plan;
  plan.servers = 4;
  plan.workers = 3;
  plan.run_dir = "/run";
  plan.job_file = "/run/job.textproto";
  plan.server_security = {"--tls_key", "/run/security/server.key", "--tls_ca", "/run/security/ca.pem"};
  plan.worker_security = {"--tls_key", "/run/security/client.key", "--tls_ca", "/run/security/ca.pem"};
  plan.worker_pages = {"--http_token_file", "/run/security/reader.token"};
  plan.inputs = {"/data/train.csv"};
  plan.resume = "/old/checkpoint-1.manifest";
  plan.hosts = ParseHosts("a:1,b:2,c:0").value();
  return plan;
}

TEST(PlacementTest, GivesWorkersToHostsInOrderAndServersInTurn) {
  const LaunchPlan plan = Plan();
  std::vector<int> workers, servers, standbys;
  for (int rank = 0; rank < 3; ++rank) workers.push_back(HostOfWorker(plan, rank));
  for (int rank = 0; rank < 4; ++rank) {
    servers.push_back(HostOfServer(plan, rank, /*standby=*/false));
    standbys.push_back(HostOfServer(plan, rank, /*standby=*/true));
  }
  EXPECT_THAT(workers, ElementsAre(0, 1, 1));
  EXPECT_THAT(servers, ElementsAre(0, 1, 2, 0));
  EXPECT_THAT(standbys, ElementsAre(1, 2, 0, 1));
}

TEST(PlacementTest, GivesEachHostOnlyWhatItsProcessesNeed) {
  LaunchPlan plan = Plan();
  plan.servers = 1;
  const std::vector<RemoteHost::Options> hosts = PlanHosts(plan);
  ASSERT_EQ(hosts.size(), 3u);
  EXPECT_THAT(hosts[0].files, ElementsAre("security/server.key", "security/ca.pem", "job.textproto",
                                          "security/client.key", "security/reader.token"));
  EXPECT_THAT(hosts[0].results, ElementsAre("metrics.jsonl")) << "of worker 0";
  EXPECT_THAT(hosts[0].setup.inputs(), ElementsAre("/old/checkpoint-1.manifest", "/data/train.csv"));
  EXPECT_THAT(hosts[1].files,
              ElementsAre("job.textproto", "security/client.key", "security/ca.pem", "security/reader.token"));
  EXPECT_THAT(hosts[1].setup.inputs(), ElementsAre("/data/train.csv"));
  EXPECT_FALSE(hosts[1].setup.servers());
  EXPECT_THAT(hosts[2].files, ElementsAre()) << "neither a server nor a worker";
}

TEST(PlacementTest, ServersListenForOtherHostsOnlyIfThereAreAny) {
  LaunchPlan plan = Plan();
  EXPECT_THAT(AddressFlags(plan, 1), ElementsAre("--listen", "0.0.0.0:0", "--advertise", "b:0"));
  plan.hosts = ParseHosts("a,[2001:db8::1]").value();
  EXPECT_THAT(AddressFlags(plan, 1), ElementsAre("--listen", "[::]:0", "--advertise", "[2001:db8::1]:0"));
  plan.hosts = ParseHosts("localhost:2").value();
  EXPECT_THAT(AddressFlags(plan, 0), ElementsAre("--listen", "127.0.0.1:0"));
}

TEST(PlacementTest, WorkersShareTheCoresOfTheirOwnHost) {
  LaunchPlan plan = Plan();
  plan.threads = 0;
  const auto threads = [&](int rank, int cores) {
    const std::vector<std::string> flags = WorkerFlags(plan, rank, cores, "a:7700");
    return *(std::find(flags.begin(), flags.end(), "--threads") + 1);
  };
  EXPECT_EQ(threads(0, 8), "8");
  EXPECT_EQ(threads(1, 8), "4") << "one of two on its host";
  EXPECT_EQ(threads(2, 1), "1");
  plan.threads = 3;
  EXPECT_EQ(threads(0, 8), "3");
}

TEST(PlacementTest, NeedsNoHostButThisOne) {
  const std::vector<RemoteHost::Options> hosts = PlanHosts({});
  ASSERT_EQ(hosts.size(), 1u);
  EXPECT_TRUE(hosts[0].host.local);
}

TEST(PortOfTest, IsBehindTheLastColon) {
  EXPECT_EQ(PortOf("0.0.0.0:7701"), "7701");
  EXPECT_EQ(PortOf("[::]:7701"), "7701");
}

}  // namespace
}  // namespace ballast
