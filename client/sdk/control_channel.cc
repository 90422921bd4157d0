// The only file of the SDK that knows gRPC.
#include "client/sdk/control_channel.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace rdmad::sdk {
namespace {

using google::protobuf::MessageLite;

class GrpcControlChannel final : public ControlChannel {
 public:
  GrpcControlChannel(const std::string& socket_path, std::string token) : token_(std::move(token)) {
    grpc::ChannelArguments arguments;
    // Each session has a connection of its own: one that waits to reconnect must not hold up a new session.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
    // How long one attempt may take, which is the daemon's load, not its absence: that shows at once.
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 20'000);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
    arguments.SetInt(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, 64 << 20);  // listings of many objects
    // A service config would be looked up in DNS for nothing.
    arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
    channel_ = grpc::CreateCustomChannel("unix:" + socket_path, grpc::InsecureChannelCredentials(), arguments);
  }

  absl::Status Call(const char* path, const MessageLite& request, MessageLite* reply, Deadline deadline) override {
    grpc::ClientContext context;
    context.AddMetadata("rdmad-token-bin", token_);
    if (!deadline.infinite()) context.set_deadline(absl::ToChronoTime(absl::Now() + deadline.Left()));
    const grpc::internal::RpcMethod method(path, grpc::internal::RpcMethod::NORMAL_RPC, channel_);
    const grpc::Status status = grpc::internal::BlockingUnaryCall<MessageLite, MessageLite, MessageLite, MessageLite>(
        channel_.get(), method, &context, request, reply);
    if (status.ok()) return absl::OkStatus();
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
      return absl::DeadlineExceededError(absl::StrCat(path, ": rdmad did not answer in time"));
    }
    // The codes are numbered alike.
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  }

 private:
  const std::string token_;
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace

std::unique_ptr<ControlChannel> ConnectControlChannel(const std::string& socket_path, std::string token) {
  return std::make_unique<GrpcControlChannel>(socket_path, std::move(token));
}

}  // namespace rdmad::sdk
