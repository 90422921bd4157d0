// The only file of the daemon that takes calls through gRPC's API.
#include "daemon/control/rpc_server.h"

#include <grpc/support/log.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>
#include <pthread.h>

#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "daemon/control/clock.h"
#include "daemon/control/log.h"
#include "daemon/control/rpc_quiet.h"

namespace rdmad::control {
namespace {

// A connection's calls beyond these wait in the client.
constexpr int kMaxCallsPerConnection = 16;

// What gRPC has to say goes the way of all our lines, and not more of it than a client can be
// allowed to cause.
void LogOfGrpc(gpr_log_func_args* line) {
  static std::mutex mutex;
  static LogLimiter limiter(10, 1'000'000'000);
  const std::lock_guard lock(mutex);
  if (line->severity < GPR_LOG_SEVERITY_ERROR || !limiter.Allow(MonotonicNs())) return;
  Log("control").warn("grpc: {}", Printable(line->message));
}

grpc::Status ToGrpc(const absl::Status& status) {
  // The codes are the same numbers.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

std::string Flatten(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!buffer.Valid() || !buffer.Dump(&slices).ok()) return bytes;
  bytes.reserve(buffer.Length());
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

grpc::ByteBuffer ToBuffer(const std::string& bytes) {
  grpc::Slice slice(bytes.data(), bytes.size());
  return grpc::ByteBuffer(&slice, 1);
}

// gRPC names a connection that it was handed "fd:17".
int ConnectionOf(const std::string& peer) {
  if (peer.compare(0, 3, "fd:") != 0) return -1;
  char* end = nullptr;
  const long number = std::strtol(peer.c_str() + 3, &end, 10);
  return end != peer.c_str() + 3 && *end == '\0' ? static_cast<int>(number) : -1;
}

class GrpcServer final : public RpcServer {
 public:
  ~GrpcServer() override { Shutdown(); }

  bool StartUp(Handler handler) {
    handler_ = std::move(handler);
    gpr_set_log_function(LogOfGrpc);
    QuietGrpcBefore();
    grpc::ServerBuilder builder;
    builder.RegisterAsyncGenericService(&service_);
    builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxCallsPerConnection);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 8192);
    // The estimate of bandwidth and delay pings the client; a Unix socket needs none.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    queue_ = builder.AddCompletionQueue();
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return false;
    QuietGrpcAfter();
    AskForNext();
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "rdmad-rpc");
      Serve();
    });
    return true;
  }

  void AddConnection(UniqueFd socket) override {
    // It closes the socket when the connection ends.
    grpc::AddInsecureChannelFromFd(server_.get(), socket.Release());
  }

  void Shutdown() override {
    if (server_ == nullptr) return;
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    // With a deadline in the past, calls that are still being read are cancelled.
    server_->Shutdown(std::chrono::system_clock::now());
    // Each has steps left, and a step that is begun on a queue that is shut down aborts the process.
    std::unique_lock lock(mutex_);
    all_gone_.wait(lock, [this] { return calls_ == 0; });
    lock.unlock();
    queue_->Shutdown();
    if (thread_.joinable()) thread_.join();
    server_.reset();
  }

 private:
  // One call. Its phases follow each other on the queue, so nobody else touches it in between;
  // while the handler has it, nothing of it is on the queue.
  struct Call {
    enum class Phase : uint8_t { kArriving, kReading, kAnswering };

    Phase phase = Phase::kArriving;
    grpc::GenericServerContext context;
    grpc::GenericServerAsyncReaderWriter stream{&context};
    grpc::ByteBuffer buffer;
  };

  void AskForNext() {
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      ++calls_;
    }
    auto* call = new Call;
    service_.RequestCall(&call->context, &call->stream, queue_.get(), queue_.get(), call);
  }

  void End(Call* call) {
    delete call;
    const std::lock_guard lock(mutex_);
    if (--calls_ == 0) all_gone_.notify_all();
  }

  void Serve() {
    void* tag = nullptr;
    bool good = false;
    while (queue_->Next(&tag, &good)) {
      auto* call = static_cast<Call*>(tag);
      switch (call->phase) {
        case Call::Phase::kArriving:
          if (!good) {  // the server stops
            End(call);
            break;
          }
          AskForNext();
          call->phase = Call::Phase::kReading;
          call->stream.Read(&call->buffer, call);
          break;
        case Call::Phase::kReading:
          if (good) {
            HandOn(call);
          } else {
            // No message, or one that is too long.
            call->phase = Call::Phase::kAnswering;
            call->stream.Finish(
                grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "a call without a request"), call);
          }
          break;
        case Call::Phase::kAnswering:
          End(call);
          break;
      }
    }
  }

  void HandOn(Call* call) {
    RpcCall out;
    out.method = call->context.method();
    out.connection = ConnectionOf(call->context.peer());
    out.request = Flatten(call->buffer);
    const auto& metadata = call->context.client_metadata();
    const auto token = metadata.find(kTokenMetadataKey);
    if (token != metadata.end()) out.token.assign(token->second.data(), token->second.size());
    out.respond = [call](const absl::Status& status, const std::string& reply) {
      call->phase = Call::Phase::kAnswering;
      if (status.ok()) {
        call->stream.WriteAndFinish(ToBuffer(reply), grpc::WriteOptions(), grpc::Status::OK, call);
      } else {
        call->stream.Finish(ToGrpc(status), call);
      }
    };
    handler_(std::move(out));
  }

  Handler handler_;
  grpc::AsyncGenericService service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  std::thread thread_;
  std::mutex mutex_;  // of what follows
  std::condition_variable all_gone_;
  uint32_t calls_ = 0;  // Call objects
  bool stopping_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(Handler handler) {
  auto server = std::make_unique<GrpcServer>();
  if (!server->StartUp(std::move(handler))) return absl::InternalError("gRPC does not start");
  return server;
}

}  // namespace rdmad::control
