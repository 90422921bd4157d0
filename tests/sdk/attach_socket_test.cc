#include "client/sdk/attach_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <thread>

#include "rdmad/client.h"

namespace rdmad::sdk {
namespace {

class AttachTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/rdmad-attach-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    run_dir_ = name;
  }
  void TearDown() override {
    ::unlink((run_dir_ + "/attach.sock").c_str());
    ::rmdir(run_dir_.c_str());
  }

  // A listening attach socket.
  UniqueFd Listen() {
    UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, (run_dir_ + "/attach.sock").c_str());
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(fd.get(), 4), 0);
    return fd;
  }

  // Accepts, reads the request, and answers with `answer` as it is.
  static v1::AttachRequest AnswerOnce(const UniqueFd& listener, const std::string& answer) {
    const UniqueFd peer(::accept(listener.get(), nullptr, nullptr));
    char bytes[4096];
    const ssize_t count = ::recv(peer.get(), bytes, sizeof(bytes), 0);
    v1::AttachRequest request;
    EXPECT_TRUE(request.ParseFromArray(bytes, static_cast<int>(count)));
    if (!answer.empty()) {
      EXPECT_GE(::send(peer.get(), answer.data(), answer.size(), MSG_NOSIGNAL), 0);
    }
    return request;
  }

  std::string run_dir_;
};

TEST_F(AttachTest, WithoutADaemonTheErrorNamesTheSocketAndWhatToDo) {
  const absl::Status status = AttachToDaemon(run_dir_, "", Deadline::Immediate()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  const std::string text(status.message());
  EXPECT_NE(text.find(run_dir_ + "/attach.sock"), std::string::npos) << text;
  EXPECT_NE(text.find("rdmad --run-dir " + run_dir_), std::string::npos) << text;
}

TEST_F(AttachTest, WaitsForADaemonThatComesLater) {
  v1::AttachReply refusal;
  refusal.set_code(7);
  refusal.set_message("not you");
  std::thread daemon([&] { AnswerOnce(Listen(), refusal.SerializeAsString()); });
  const absl::Status status = AttachToDaemon(run_dir_, "", Deadline::After(absl::Seconds(20))).status();
  daemon.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
}

TEST_F(AttachTest, StaleSocketCountsAsNoDaemon) {
  Listen();  // and gone again
  EXPECT_EQ(AttachToDaemon(run_dir_, "", Deadline::Immediate()).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(AttachTest, SaysWhoItIs) {
  const UniqueFd listener = Listen();
  v1::AttachReply refusal;
  refusal.set_code(9);
  refusal.set_message("protocol version 1, mine is 2");
  v1::AttachRequest request;
  std::thread daemon([&] { request = AnswerOnce(listener, refusal.SerializeAsString()); });
  const absl::Status status = AttachToDaemon(run_dir_, "my app", Deadline::Immediate()).status();
  daemon.join();
  EXPECT_EQ(request.client_name(), "my app");
  EXPECT_EQ(request.protocol_version(), static_cast<uint32_t>(v1::PROTOCOL_VERSION_CURRENT));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "attach: refused: protocol version 1, mine is 2");
}

TEST_F(AttachTest, HangupInsteadOfAnAnswer) {
  const UniqueFd listener = Listen();
  std::thread daemon([&] { AnswerOnce(listener, ""); });
  const absl::Status status = AttachToDaemon(run_dir_, "", Deadline::Immediate()).status();
  daemon.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST_F(AttachTest, NonsenseInsteadOfAnAnswer) {
  const UniqueFd listener = Listen();
  std::thread daemon([&] { AnswerOnce(listener, "\xff\xff\xff\xff"); });
  const absl::Status status = AttachToDaemon(run_dir_, "", Deadline::Immediate()).status();
  daemon.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
}

TEST_F(AttachTest, AnswerWithoutDescriptorsIsRefused) {
  const UniqueFd listener = Listen();
  v1::AttachReply reply;
  reply.set_session_id(1);
  std::thread daemon([&] { AnswerOnce(listener, reply.SerializeAsString()); });
  const absl::Status status = AttachToDaemon(run_dir_, "", Deadline::Immediate()).status();
  daemon.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
}

TEST_F(AttachTest, NamesAreCheckedBeforeAnybodyIsAsked) {
  EXPECT_EQ(AttachToDaemon(run_dir_, std::string(65, 'x'), Deadline::Immediate()).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AttachToDaemon(run_dir_, "two\nlines", Deadline::Immediate()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(AttachTest, RunDirThatIsTooLongForASocket) {
  const absl::Status status = AttachToDaemon("/tmp/" + std::string(120, 'd'), "", Deadline::Infinite()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("limit=107"), absl::string_view::npos) << status;
}

TEST_F(AttachTest, AnotherKindOfSocketIsNotOurs) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, (run_dir_ + "/attach.sock").c_str());
  ASSERT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(fd.get(), 1), 0);
  EXPECT_EQ(AttachToDaemon(run_dir_, "", Deadline::Infinite()).status().code(), absl::StatusCode::kFailedPrecondition);
}

// ---- descriptors that come later ----

class DeliveryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int sockets[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
    daemon_.Reset(sockets[0]);
    socket_ = std::make_unique<AttachSocket>(UniqueFd(sockets[1]));
  }

  // Sends a descriptor of a file that holds `tag`.
  void Deliver(uint64_t tag, v1::DescriptorKind kind) {
    v1::DescriptorDelivery delivery;
    delivery.set_tag(tag);
    delivery.set_kind(kind);
    std::string bytes = delivery.SerializeAsString();
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    ASSERT_EQ(::write(ends[1], &tag, sizeof(tag)), 8);
    iovec data{bytes.data(), bytes.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    cmsghdr* message = CMSG_FIRSTHDR(&header);
    message->cmsg_level = SOL_SOCKET;
    message->cmsg_type = SCM_RIGHTS;
    message->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(message), &ends[0], sizeof(int));
    ASSERT_GE(::sendmsg(daemon_.get(), &header, MSG_NOSIGNAL), 0);
    ::close(ends[0]);
    ::close(ends[1]);
  }

  static uint64_t TagIn(const UniqueFd& fd) {
    uint64_t tag = 0;
    EXPECT_EQ(::read(fd.get(), &tag, sizeof(tag)), 8);
    return tag;
  }

  UniqueFd daemon_;
  std::unique_ptr<AttachSocket> socket_;
};

TEST_F(DeliveryTest, DescriptorsAreFoundByTagInAnyOrder) {
  Deliver(1, v1::DESCRIPTOR_KIND_POOL);
  Deliver(2, v1::DESCRIPTOR_KIND_ARENA);
  const absl::StatusOr<UniqueFd> second = socket_->TakeDescriptor(2, v1::DESCRIPTOR_KIND_ARENA, Deadline::Infinite());
  const absl::StatusOr<UniqueFd> first = socket_->TakeDescriptor(1, v1::DESCRIPTOR_KIND_POOL, Deadline::Infinite());
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(TagIn(*first), 1u);
  EXPECT_EQ(TagIn(*second), 2u);
}

TEST_F(DeliveryTest, AnotherKindThanExpectedIsAnError) {
  Deliver(1, v1::DESCRIPTOR_KIND_POOL);
  EXPECT_EQ(socket_->TakeDescriptor(1, v1::DESCRIPTOR_KIND_ARENA, Deadline::Infinite()).status().code(),
            absl::StatusCode::kInternal);
}

TEST_F(DeliveryTest, OneThatDoesNotComeIsWaitedForUntilTheDeadline) {
  EXPECT_EQ(socket_->TakeDescriptor(1, v1::DESCRIPTOR_KIND_POOL, Deadline::After(absl::Milliseconds(5))).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(DeliveryTest, HangupIsSeenAndNamed) {
  EXPECT_FALSE(socket_->HungUp());
  daemon_.Reset();
  EXPECT_TRUE(socket_->HungUp());
  EXPECT_EQ(socket_->TakeDescriptor(1, v1::DESCRIPTOR_KIND_POOL, Deadline::Infinite()).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(DeliveryTest, ThreadsEachGetTheirOwn) {
  std::thread takers[8];
  for (uint64_t tag = 1; tag <= 8; ++tag) {
    takers[tag - 1] = std::thread([this, tag] {
      const absl::StatusOr<UniqueFd> fd = socket_->TakeDescriptor(tag, v1::DESCRIPTOR_KIND_POOL, Deadline::Infinite());
      ASSERT_TRUE(fd.ok()) << fd.status();
      EXPECT_EQ(TagIn(*fd), tag);
    });
  }
  for (uint64_t tag = 8; tag >= 1; --tag) Deliver(tag, v1::DESCRIPTOR_KIND_POOL);
  for (std::thread& taker : takers) taker.join();
}

TEST(RunDir, ChosenOneBeatsTheEnvironment) {
  ::setenv("RDMAD_RUN_DIR", "/from/environment", 1);
  EXPECT_EQ(ResolveRunDir("/chosen"), "/chosen");
  EXPECT_EQ(ResolveRunDir(""), "/from/environment");
  ::unsetenv("RDMAD_RUN_DIR");
  ::unsetenv("XDG_RUNTIME_DIR");
  EXPECT_EQ(ResolveRunDir(""), "/run/rdmad");
}

}  // namespace
}  // namespace rdmad::sdk
