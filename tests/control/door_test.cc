// The doors of the running daemon: who may attach, whose a call is, and what nonsense does.
#include <fcntl.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/control/door_bed.h"
#include "tests/support/slow.h"

namespace rdmad::testing {
namespace {

using absl::StatusCode;

// ---- sessions

TEST_F(Door, AttachedClientIsASession) {
  Start();
  ASSERT_OK_AND_ASSIGN(const RawClient client, Attach("door_test"));
  EXPECT_EQ(client.token().size(), 32u);
  v1::ListSessionsReply reply;
  ASSERT_OK(client.Call(client.admin(), &v1::AdminService::Stub::ListSessions,
                        v1::ListSessionsRequest(), &reply));
  ASSERT_EQ(reply.sessions_size(), 1);
  EXPECT_EQ(reply.sessions(0).name(), "door_test");
  EXPECT_EQ(reply.sessions(0).pid(), static_cast<uint32_t>(getpid()));
  EXPECT_EQ(reply.sessions(0).uid(), geteuid());
}

TEST_F(Door, NamelessClientIsCalledAsItsProcess) {
  Start();
  ASSERT_OK_AND_ASSIGN(const RawClient client, Attach(""));
  v1::GetSessionReply reply;
  ASSERT_OK(client.Call(client.session(), &v1::SessionService::Stub::GetSession,
                        v1::GetSessionRequest(), &reply));
  EXPECT_EQ(reply.name() + "\n", ReadFile("/proc/self/comm"));
}

TEST_F(Door, HangUpEndsTheSessionAndItsToken) {
  Start();
  ASSERT_OK_AND_ASSIGN(const RawClient observer, Attach("observer"));
  ASSERT_OK_AND_ASSIGN(RawClient client, Attach());
  ASSERT_OK(GetSession(client, client.token()));
  EXPECT_EQ(SessionsSeenBy(observer), 2);
  client.HangUp();
  EXPECT_TRUE(Soon([&] { return SessionsSeenBy(observer) == 1; }));
  EXPECT_EQ(GetSession(client, client.token()).code(), StatusCode::kUnauthenticated);
}

TEST_F(Door, TokensOfNobodyAreRefused) {
  Start();
  ASSERT_OK_AND_ASSIGN(const RawClient client, Attach());
  std::string almost = client.token();
  almost.back() = static_cast<char>(almost.back() ^ 1);
  for (const std::string& token :
       {std::string(), std::string("x"), almost, client.token() + "x", client.token().substr(1),
        std::string(32, '\0'), std::string(4000, 'a')}) {
    EXPECT_EQ(GetSession(client, token).code(), StatusCode::kUnauthenticated) << token.size();
  }
}

TEST_F(Door, AnotherSessionsHandlesMeanNothing) {
  Start();
  ASSERT_OK_AND_ASSIGN(const RawClient owner, Attach());
  ASSERT_OK_AND_ASSIGN(const RawClient other, Attach());
  v1::AllocPdReply pd;
  ASSERT_OK(owner.Call(owner.verbs(), &v1::VerbsService::Stub::AllocPd, v1::AllocPdRequest(), &pd));
  v1::DeallocPdRequest request;
  request.set_pd(pd.pd());
  v1::DeallocPdReply reply;
  EXPECT_EQ(other.Call(other.verbs(), &v1::VerbsService::Stub::DeallocPd, request, &reply).code(),
            StatusCode::kNotFound);
  EXPECT_OK(owner.Call(owner.verbs(), &v1::VerbsService::Stub::DeallocPd, request, &reply));
}

TEST_F(Door, UnknownMethodIsUnimplemented) {
  Start();
  ASSERT_OK_AND_ASSIGN(const RawClient client, Attach());
  const std::shared_ptr<grpc::Channel> channel = ConnectRpc(daemon_->run_dir());
  grpc::internal::RpcMethod method("/rdmad.v1.VerbsService/Nonsense",
                                   grpc::internal::RpcMethod::NORMAL_RPC, channel);
  grpc::ClientContext context;
  context.AddMetadata(kTokenKey, client.token());
  v1::GetSessionReply reply;
  const grpc::Status status = grpc::internal::BlockingUnaryCall(channel.get(), method, &context,
                                                                v1::GetSessionRequest(), &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(Door, SessionsPerUserAreBounded) {
  Start("[limits]\nmax_sessions = 3\nmax_sessions_per_user = 2\n");
  ASSERT_OK_AND_ASSIGN(RawClient first, Attach());
  ASSERT_OK_AND_ASSIGN(const RawClient second, Attach());
  const absl::Status third = Attach().status();
  EXPECT_EQ(third.code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(Has(std::string(third.message()), "limit=max_sessions_per_user value=2")) << third;
  first.HangUp();
  EXPECT_TRUE(Soon([&] { return Attach().ok(); }));
}

// ---- strangers

// Runs tests/control/stranger as user nobody.
class Stranger {
 public:
  explicit Stranger(const DaemonProcess& daemon) : run_dir_(daemon.run_dir()) {
    chmod(dir_.path().c_str(), 0755);
    // The folder that holds the run directory is this test's own.
    chmod(run_dir_.substr(0, run_dir_.rfind('/')).c_str(), 0755);
    program_ = dir_.path() + "/stranger";
    EXPECT_TRUE(WriteFile(program_, ReadFile(Runfile("tests/control/stranger"))));
    chmod(program_.c_str(), 0755);
  }
  // The words that the program prints for an attach, or for a call with `token`.
  std::string Attach() { return Run({program_, run_dir_}); }
  std::string CallWith(const std::string& token) {
    std::string hex;
    for (char c : token)
      absl::StrAppend(&hex, absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    return Run({program_, run_dir_, hex});
  }

 private:
  static std::string Run(const std::vector<std::string>& argv) {
    ProcessOptions options;
    options.uid = 65534;
    absl::StatusOr<ProgramResult> result = RunProgram(argv, options, Slow(absl::Seconds(20)));
    return result.ok() ? result->output : result.status().ToString();
  }

  const TempDir dir_;
  const std::string run_dir_;
  std::string program_;
};

TEST_F(Door, StrangerCannotAttachAndIsLogged) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be somebody else";
  Start();
  Stranger stranger(*daemon_);
  const std::string answer = stranger.Attach();
  EXPECT_TRUE(Has(answer, "PERMISSION_DENIED")) << answer;
  EXPECT_TRUE(Has(answer, "uid 65534 may not use this rdmad")) << answer;
  EXPECT_TRUE(Has(daemon_->Log(), "attach refused uid=65534")) << daemon_->Log();
}

TEST_F(Door, StrangerCannotEvenConnectToTheRpcSocket) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be somebody else";
  Start();
  ASSERT_OK_AND_ASSIGN(const RawClient client, Attach());
  Stranger stranger(*daemon_);
  EXPECT_TRUE(Has(stranger.CallWith(client.token()), "UNAVAILABLE"));
  EXPECT_TRUE(Has(daemon_->Log(), "connection refused socket=rdmad.sock uid=65534"));
}

TEST_F(Door, AnotherUsersTokenIsOfNoUse) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be somebody else";
  Start("[policy]\nallow_users = [\"*\"]\n");
  ASSERT_OK_AND_ASSIGN(const RawClient client, Attach());
  Stranger stranger(*daemon_);
  EXPECT_TRUE(Has(stranger.Attach(), "attached")) << "this user may attach";
  const std::string answer = stranger.CallWith(client.token());
  EXPECT_TRUE(Has(answer, "PERMISSION_DENIED")) << answer;
  EXPECT_TRUE(Has(daemon_->Log(), "caller_uid=65534")) << daemon_->Log();
  EXPECT_OK(GetSession(client, client.token()));
}

TEST_F(Door, OrdinaryUserSeesOnlyTheirOwn) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be somebody else";
  Start("[policy]\nallow_users = [\"*\"]\n");
  ASSERT_OK_AND_ASSIGN(const RawClient client, Attach());
  Stranger stranger(*daemon_);
  EXPECT_TRUE(Has(stranger.Attach(), "attached sessions=1 privileged=0"));
  ASSERT_OK_AND_ASSIGN(const v1::GetStatusReply seen, StatusBy(client));
  EXPECT_TRUE(seen.privileged_view());
}

// ---- hostile packets on the attach socket

std::string Request(uint32_t version, const std::string& name) {
  v1::AttachRequest request;
  request.set_protocol_version(version);
  request.set_client_name(name);
  return request.SerializeAsString();
}

// Sends a first packet and returns what comes back: the code of an AttachReply, or -1 for a
// hang-up.
int CodeFor(const std::string& run_dir, const std::string& packet, int descriptor = -1) {
  const absl::StatusOr<UniqueFd> socket = ConnectAttachSocket(run_dir);
  if (!socket.ok()) return -2;
  iovec payload{const_cast<char*>(packet.data()), packet.size()};
  msghdr message{};
  message.msg_iov = &payload;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  if (descriptor >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  sendmsg(socket->get(), &message, MSG_NOSIGNAL);
  std::array<char, 8192> answer{};
  const ssize_t bytes = recv(socket->get(), answer.data(), answer.size(), 0);
  v1::AttachReply reply;
  if (bytes <= 0 || !reply.ParseFromArray(answer.data(), static_cast<int>(bytes))) return -1;
  EXPECT_EQ(recv(socket->get(), answer.data(), answer.size(), 0), 0)
      << "an error is the last message";
  return reply.code();
}

TEST_F(Door, NonsenseOnTheAttachSocketIsAnsweredAndHarmless) {
  Start();
  ASSERT_OK_AND_ASSIGN(const RawClient observer, Attach("observer"));
  ASSERT_EQ(SessionsSeenBy(observer), 1);  // connects
  ASSERT_OK_AND_ASSIGN(const ProcessUse before, daemon_->Use());
  const std::string& run_dir = daemon_->run_dir();
  const int invalid = static_cast<int>(StatusCode::kInvalidArgument);
  const int version = static_cast<int>(StatusCode::kFailedPrecondition);
  for (int round = 0; round < 20; ++round) {
    EXPECT_EQ(CodeFor(run_dir, "\xff\xff\xff\xff"), invalid);
    EXPECT_EQ(CodeFor(run_dir, std::string(4096, '\xff')), invalid);
    EXPECT_EQ(CodeFor(run_dir, std::string(4097, 'x')), invalid);
    EXPECT_EQ(CodeFor(run_dir, std::string(100'000, 'x')), invalid);
    EXPECT_EQ(CodeFor(run_dir, Request(1, "fds"), STDERR_FILENO), invalid);
    EXPECT_EQ(CodeFor(run_dir, Request(1, std::string(65, 'n'))), invalid);
    EXPECT_EQ(CodeFor(run_dir, Request(1, "new\nline")), invalid);
    EXPECT_EQ(CodeFor(run_dir, Request(0, "old")), version);
    EXPECT_EQ(CodeFor(run_dir, Request(2, "new")), version);
    EXPECT_EQ(CodeFor(run_dir, ""), -1);
  }
  EXPECT_EQ(SessionsSeenBy(observer), 1);
  EXPECT_TRUE(Soon([&] { return daemon_->Use()->descriptors <= before.descriptors; }));
}

TEST_F(Door, PacketAfterTheFirstEndsTheSession) {
  Start();
  ASSERT_OK_AND_ASSIGN(const RawClient observer, Attach("observer"));
  ASSERT_OK_AND_ASSIGN(const RawClient client, Attach());
  ASSERT_EQ(send(client.socket(), "more", 4, MSG_NOSIGNAL), 4);
  std::array<char, 16> nothing{};
  EXPECT_EQ(recv(client.socket(), nothing.data(), nothing.size(), 0), 0);
  EXPECT_EQ(GetSession(client, client.token()).code(), StatusCode::kUnauthenticated);
  EXPECT_EQ(SessionsSeenBy(observer), 1);
}

TEST_F(Door, SilentConnectionsCannotKeepOthersOut) {
  Start();
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 300; ++i) {
    absl::StatusOr<UniqueFd> socket = ConnectAttachSocket(daemon_->run_dir());
    ASSERT_OK(socket);
    silent.push_back(*std::move(socket));
  }
  ASSERT_OK_AND_ASSIGN(const RawClient client, Attach());
  EXPECT_OK(GetSession(client, client.token()));
  // The oldest were dropped to make room.
  char byte = 0;
  EXPECT_EQ(recv(silent.front().get(), &byte, 1, 0), 0);
  EXPECT_LT(daemon_->Use()->descriptors, 400);  // two each
}

TEST_F(Door, SilentConnectionIsDroppedInTheEnd) {
  Start();
  const absl::StatusOr<UniqueFd> silent = ConnectAttachSocket(daemon_->run_dir());
  ASSERT_OK(silent);
  const timeval limit{60, 0};
  setsockopt(silent->get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  char byte = 0;
  EXPECT_EQ(recv(silent->get(), &byte, 1, 0), 0);
}

// A client that makes things and never looks for the descriptors ends up refused, not waited for.
TEST_F(Door, ClientThatDoesNotTakeItsDescriptorsIsRefusedInTheEnd) {
  Start();
  ASSERT_OK_AND_ASSIGN(const RawClient client, Attach());
  absl::Status status;
  int made = 0;
  for (; made < 5000 && status.ok(); ++made) {
    v1::CreateEventChannelReply reply;
    status = client.Call(client.cm(), &v1::CmService::Stub::CreateEventChannel,
                         v1::CreateEventChannelRequest(), &reply);
  }
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << made;
  ASSERT_OK_AND_ASSIGN(const RawClient other, Attach());
  EXPECT_OK(GetSession(other, other.token()));
}

}  // namespace
}  // namespace rdmad::testing
