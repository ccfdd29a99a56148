// SPDX-License-Identifier: Apache-2.0
// TLS and tokens between our own servers and clients: which connections succeed, and the errors of those that do not.
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/coordinator_link.h"
#include "common/rpc/credentials.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "tests/testing/cluster.h"
#include "tests/testing/security_folder.h"

namespace ballast {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr absl::Duration kRefresh = absl::Seconds(1);

class TlsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    token_file_ =
        folder_.Write("tokens", absl::StrCat("admin * ", SecurityFolder::Token("admin", "*"), "\nworker cluster ",
                                             SecurityFolder::Token("worker", "cluster"), "\nreader cluster ",
                                             SecurityFolder::Token("reader", "cluster"), "\n"));
    server_files_ = folder_.Issue("server", {"localhost", "127.0.0.1"});
    client_files_ = folder_.Issue("client", {});
  }

  Server::Options ServerOptions() const {
    Server::Options options;
    options.security = {server_files_, token_file_};
    options.certificate_refresh = kRefresh;
    options.max_state_bytes = 1 << 24;
    return options;
  }
  void Start(Server::Options options) {
    servers_.push_back(StartServer(std::move(options)));
    ASSERT_NE(servers_.back(), nullptr);
  }

  Credentials ClientCredentials(const TlsFiles& files, const std::string& token) const {
    return Credentials::Make({files, ""}, token, kRefresh).value();
  }
  // With a worker's token.
  Credentials WorkerCredentials(const TlsFiles& files) const {
    return ClientCredentials(files, SecurityFolder::Token("worker", "cluster"));
  }
  Credentials GoodCredentials() const { return WorkerCredentials(client_files_); }
  ClientOptions OptionsWith(const Credentials& credentials) const {
    ClientOptions options;
    options.coordinator = servers_[0]->address();
    options.credentials = credentials;
    options.job = "cluster";
    options.policy.mutable_async();
    options.connect_timeout = absl::Seconds(30);
    return options;
  }
  // Returns the status of a new connection, tried until `timeout`.
  absl::Status Connect(const Credentials& credentials, absl::Duration timeout = absl::Milliseconds(500)) const {
    return CoordinatorLink::Connect(servers_[0]->address(), timeout, credentials).status();
  }
  // Waits until a new connection is refused; a replaced file takes effect within a second or two.
  bool BecomesRefused(const Credentials& credentials) const {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (absl::Now() < deadline) {
      if (!Connect(credentials).ok()) return true;
    }
    return false;
  }

  SecurityFolder folder_;
  std::string token_file_;
  TlsFiles server_files_, client_files_;
  std::vector<std::unique_ptr<Server>> servers_;
};

TEST_F(TlsTest, AJobOfTwoServersTrainsThroughIt) {
  Server::Options options = ServerOptions();
  options.servers = 2;
  Start(options);
  options.rank = 1;
  options.coordinator = servers_[0]->address();
  Start(options);
  for (const bool shared_memory : {false, true}) {
    ClientOptions client_options = OptionsWith(GoodCredentials());
    client_options.shared_memory = shared_memory;
    const auto client = Join(client_options, {Spec(1, "a", 100'000), Spec(2, "b", 7)});
    ASSERT_TRUE(client.ok()) << client.status();
    const std::vector<float> ones(100'000, 1);
    std::vector<float> a(100'000), b(7);
    const std::vector<TensorGradient> gradients = {{1, ones}, {2, absl::MakeSpan(ones).first(7)}};
    const std::vector<TensorValues> values = {{1, absl::MakeSpan(a)}, {2, absl::MakeSpan(b)}};
    const auto pushed = (*client)->PushPull(shared_memory ? 1 : 0, 1, gradients, values).Get();
    ASSERT_TRUE(pushed.ok()) << pushed.status();
    EXPECT_THAT(a, Each(shared_memory ? 98 : 99));
    EXPECT_THAT(b, Each(shared_memory ? 98 : 99));
  }
}

TEST_F(TlsTest, AServerMayAskForNoCertificates) {
  server_files_.authorities.clear();
  Start(ServerOptions());
  EXPECT_EQ(Connect(ClientCredentials({"", "", folder_.path("ca.pem")}, SecurityFolder::Token("reader", "cluster")),
                    absl::Seconds(30)),
            absl::OkStatus());
}

TEST_F(TlsTest, ATokenThatDoesNotDoIsSaidAtOnce) {
  Start(ServerOptions());
  const absl::Time start = absl::Now();
  absl::Status status = Client::Connect(OptionsWith(ClientCredentials(client_files_, ""))).status();
  EXPECT_TRUE(absl::IsUnauthenticated(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("got no token"));
  status = Client::Connect(OptionsWith(ClientCredentials(client_files_, std::string(40, 'z')))).status();
  EXPECT_TRUE(absl::IsUnauthenticated(status)) << status;
  // A reader may look but not declare.
  status =
      Join(OptionsWith(ClientCredentials(client_files_, SecurityFolder::Token("reader", "cluster"))), {Spec(1, "a", 8)})
          .status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("got a token of role reader, want worker"));
  EXPECT_LT(absl::Now() - start, absl::Seconds(20)) << "the connection was retried";
}

TEST_F(TlsTest, AClientTrustsNoServerOfAnotherName) {
  server_files_ = folder_.Issue("server", {"other.example", "10.0.0.1"});
  Start(ServerOptions());
  EXPECT_FALSE(Connect(GoodCredentials()).ok());
  server_files_ = folder_.Issue("server", {"127.0.0.1"});
  Start(ServerOptions());
  std::swap(servers_[0], servers_[1]);
  EXPECT_EQ(Connect(GoodCredentials(), absl::Seconds(30)), absl::OkStatus());
}

TEST_F(TlsTest, AClientTrustsNoServerWhoseCertificateHasExpired) {
  // Uses a gRPC server, because ours refuses to start with an expired certificate.
  const TlsFiles late = folder_.Issue("late", {"127.0.0.1"}, SecurityFolder::Past());
  grpc::SslServerCredentialsOptions ssl;
  ssl.pem_key_cert_pairs.push_back(
      {ReadPrivateFile(late.key, "key").value(), ReadPrivateFile(late.certificate, "certificate").value()});
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(ssl), &port);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const absl::Status status =
      CoordinatorLink::Connect(absl::StrCat("127.0.0.1:", port), absl::Seconds(1), GoodCredentials()).status();
  EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) << status;
}

TEST_F(TlsTest, AServerTakesUpAReplacedCertificate) {
  Start(ServerOptions());
  const auto next = CertificateAuthority::Create("next", SecurityFolder::Now());
  const Credentials old = GoodCredentials();
  // Trusts the next authority, and has a certificate of the old one, which the server continues to trust.
  TlsFiles files = client_files_;
  files.authorities = folder_.Write("next.pem", next->certificate());
  const Credentials renewed = WorkerCredentials(files);
  ASSERT_EQ(Connect(old, absl::Seconds(30)), absl::OkStatus());
  ASSERT_FALSE(Connect(renewed).ok());
  const auto before = CoordinatorLink::Connect(servers_[0]->address(), absl::Seconds(30), old);
  ASSERT_TRUE(before.ok()) << before.status();
  folder_.Issue(*next, "server", {"127.0.0.1"});
  EXPECT_EQ(Connect(renewed, absl::Seconds(60)), absl::OkStatus());
  EXPECT_FALSE(Connect(old).ok());
  // An established connection continues.
  EXPECT_TRUE((*before)->GetProgress().ok());
}

TEST_F(TlsTest, AServerTakesUpReplacedAuthorities) {
  Start(ServerOptions());
  const Credentials old = GoodCredentials();
  ASSERT_EQ(Connect(old, absl::Seconds(30)), absl::OkStatus());
  const auto next = CertificateAuthority::Create("next", SecurityFolder::Now());
  TlsFiles files = folder_.Issue(*next, "renewed", {});
  files.authorities = folder_.Write("first.pem", folder_.authority().certificate());
  const Credentials renewed = WorkerCredentials(files);
  ASSERT_FALSE(Connect(renewed).ok());
  folder_.Write("ca.pem", next->certificate());
  EXPECT_EQ(Connect(renewed, absl::Seconds(60)), absl::OkStatus());
  files = client_files_;
  files.authorities = folder_.path("first.pem");
  EXPECT_TRUE(BecomesRefused(WorkerCredentials(files)));
}

TEST_F(TlsTest, AClientTakesUpReplacedFiles) {
  Start(ServerOptions());
  const auto stranger = CertificateAuthority::Create("stranger", SecurityFolder::Now());
  folder_.Issue(*stranger, "client", {});
  const Credentials credentials = GoodCredentials();
  ASSERT_FALSE(Connect(credentials).ok());
  folder_.Issue("client", {});
  EXPECT_EQ(Connect(credentials, absl::Seconds(60)), absl::OkStatus());
}

// Like after only one of the two files has been replaced.
TEST_F(TlsTest, AServerGetsOverAKeyThatDoesNotFit) {
  Start(ServerOptions());
  ASSERT_EQ(Connect(GoodCredentials(), absl::Seconds(30)), absl::OkStatus());
  const CertificateAuthority::Identity next =
      folder_.authority().Issue("server", {"127.0.0.1"}, SecurityFolder::Now()).value();
  folder_.Write("server.key", next.key);
  EXPECT_TRUE(BecomesRefused(GoodCredentials()));
  folder_.Write("server.pem", next.certificate);
  EXPECT_EQ(Connect(GoodCredentials(), absl::Seconds(60)), absl::OkStatus());
}

TEST_F(TlsTest, AServerThatOthersWouldReachDoesNotStartWithoutIt) {
  const std::pair<SecurityOptions, const char*> refused[] = {
      {{}, "refusing to listen on 0.0.0.0:0 without TLS and tokens"},
      {{server_files_, ""}, "without tokens"},
      {{{}, token_file_}, "without TLS"},
  };
  Server::Options options;
  options.listen = "0.0.0.0:0";
  for (const auto& [security, message] : refused) {
    options.security = security;
    const absl::Status status = Server::Start(options).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr(message));
  }
  for (const SecurityOptions& security : {SecurityOptions{{}, "", true}, SecurityOptions{server_files_, token_file_}}) {
    options.security = security;
    EXPECT_EQ(Server::Start(options).status(), absl::OkStatus());
  }
}

TEST_F(TlsTest, AServerDoesNotStartWithFilesThatDoNotDo) {
  const auto start = [this](const TlsFiles& tls, const std::string& token_file) {
    Server::Options options = ServerOptions();
    options.security = {tls, token_file};
    return Server::Start(options).status();
  };
  EXPECT_TRUE(absl::IsInvalidArgument(start({server_files_.certificate, "", server_files_.authorities}, token_file_)));
  EXPECT_TRUE(absl::IsFailedPrecondition(start(folder_.Issue("late", {}, SecurityFolder::Past()), token_file_)));
  EXPECT_THAT(start({"", "", folder_.path("ca.pem")}, token_file_).message(), HasSubstr("--tls_ca: want --tls_cert"));
  EXPECT_TRUE(absl::IsInvalidArgument(start(server_files_, folder_.path("none"))));
  EXPECT_THAT(start(server_files_, folder_.TokenFile("worker", "cluster")).message(),
              HasSubstr("has no token of role admin"));
}

TEST_F(TlsTest, AServerThatServer0DoesNotKnowEnds) {
  Start(ServerOptions());
  absl::Mutex mutex;
  absl::Status fatal;
  Server::Options options = ServerOptions();
  options.rank = 1;
  options.servers = 2;
  options.coordinator = servers_[0]->address();
  options.security.token_file = folder_.Write("others", absl::StrCat("admin * ", std::string(40, 'q'), "\n"));
  options.on_fatal = [&](absl::Status status) {
    absl::MutexLock lock(&mutex);
    fatal = std::move(status);
  };
  Start(std::move(options));
  absl::MutexLock lock(&mutex);
  auto told = [&] { return !fatal.ok(); };
  EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&told), absl::Seconds(30)));
  EXPECT_TRUE(absl::IsUnauthenticated(fatal)) << fatal;
}

TEST_F(TlsTest, AClientSaysNothingToOtherMachinesWithoutIt) {
  ClientOptions options;
  options.coordinator = "192.0.2.1:7700";
  options.job = "cluster";
  options.credentials = Credentials::Make({}, SecurityFolder::Token("worker", "cluster")).value();
  absl::Status status = Client::Connect(options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("refusing to connect to 192.0.2.1:7700 without TLS"));
  options.coordinator.clear();
  options.shards = {"127.0.0.1:1", "192.0.2.1:7700"};
  EXPECT_TRUE(absl::IsInvalidArgument(Client::Connect(options).status()));
  EXPECT_THAT(
      std::string(Credentials::Make({{client_files_.certificate, client_files_.key, ""}}, "").status().message()),
      HasSubstr("--tls_cert: want --tls_ca too"));
}

}  // namespace
}  // namespace ballast
