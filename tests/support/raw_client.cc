#include "tests/support/raw_client.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace rdmad::testing {
namespace {

constexpr int kMaxDescriptors = 8;

// One message and the descriptors that came with it. Errors: Unavailable (hung up), NotFound
// (nothing within 5 s).
absl::StatusOr<std::string> ReceiveMessage(int fd, std::vector<UniqueFd>* descriptors) {
  pollfd poll{fd, POLLIN, 0};
  if (::poll(&poll, 1, 5000) == 0) return absl::NotFoundError("nothing on the attach socket");
  std::array<char, 16384> data{};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxDescriptors)> control{};
  iovec part{data.data(), data.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t bytes = ::recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  if (bytes < 0) return absl::ErrnoToStatus(errno, "recvmsg");
  if (bytes == 0) return absl::UnavailableError("the daemon hung up");
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int received = -1;
      std::memcpy(&received, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      descriptors->emplace_back(received);
    }
  }
  return std::string(data.data(), static_cast<size_t>(bytes));
}

}  // namespace

absl::StatusOr<UniqueFd> ConnectAttachSocket(const std::string& run_dir) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = run_dir + "/attach.sock";
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return absl::ErrnoToStatus(errno, "connect " + path);
  }
  return fd;
}

std::shared_ptr<grpc::Channel> ConnectRpc(const std::string& run_dir) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel("unix:" + run_dir + "/rdmad.sock",
                                   grpc::InsecureChannelCredentials(), arguments);
}

absl::StatusOr<RawClient> RawClient::Attach(const std::string& run_dir, const std::string& name) {
  absl::StatusOr<UniqueFd> socket = ConnectAttachSocket(run_dir);
  if (!socket.ok()) return socket.status();
  RawClient client;
  client.socket_ = std::move(socket).value();
  v1::AttachRequest request;
  request.set_protocol_version(v1::PROTOCOL_VERSION_CURRENT);
  request.set_client_name(name);
  const std::string bytes = request.SerializeAsString();
  if (::send(client.socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) {
    return absl::ErrnoToStatus(errno, "send the attach request");
  }
  absl::StatusOr<std::string> reply = ReceiveMessage(client.socket_.get(), &client.descriptors_);
  if (!reply.ok()) return reply.status();
  if (!client.reply_.ParseFromString(*reply)) return absl::InternalError("no AttachReply");
  if (client.reply_.code() != 0) {
    return absl::Status(static_cast<absl::StatusCode>(client.reply_.code()),
                        client.reply_.message());
  }
  if (client.descriptors_.size() != 4) {
    return absl::InternalError(absl::StrCat(client.descriptors_.size(), " descriptors came"));
  }
  client.token_ = client.reply_.token();
  const std::shared_ptr<grpc::Channel> channel = ConnectRpc(run_dir);
  client.admin_ = v1::AdminService::NewStub(channel);
  client.cm_ = v1::CmService::NewStub(channel);
  client.memory_ = v1::MemoryService::NewStub(channel);
  client.session_ = v1::SessionService::NewStub(channel);
  client.verbs_ = v1::VerbsService::NewStub(channel);
  return client;
}

void RawClient::Disconnect() {
  HangUp();
  admin_.reset();
  cm_.reset();
  memory_.reset();
  session_.reset();
  verbs_.reset();
}

absl::StatusOr<UniqueFd> RawClient::TakeDescriptor(uint64_t tag) {
  while (!delivered_.contains(tag)) {
    std::vector<UniqueFd> descriptors;
    absl::StatusOr<std::string> message = ReceiveMessage(socket_.get(), &descriptors);
    if (!message.ok()) return message.status();
    v1::DescriptorDelivery delivery;
    if (!delivery.ParseFromString(*message) || descriptors.size() != 1) {
      return absl::InternalError("no DescriptorDelivery");
    }
    delivered_[delivery.tag()] = std::move(descriptors[0]);
  }
  UniqueFd fd = std::move(delivered_[tag]);
  delivered_.erase(tag);
  return fd;
}

}  // namespace rdmad::testing
