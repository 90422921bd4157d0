// A client of the daemon that is not the SDK: it attaches, calls and maps by the contract in proto/
// alone, so a test can do what no decent library would.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/unique_fd.h"
#include "proto/rdmad/v1/admin.grpc.pb.h"
#include "proto/rdmad/v1/attach.pb.h"
#include "proto/rdmad/v1/cm.grpc.pb.h"
#include "proto/rdmad/v1/memory.grpc.pb.h"
#include "proto/rdmad/v1/session.grpc.pb.h"
#include "proto/rdmad/v1/verbs.grpc.pb.h"

namespace rdmad::testing {

inline constexpr char kTokenKey[] = "rdmad-token-bin";

// A connected attach socket on which nothing was sent. Errors: those of connect(2).
absl::StatusOr<UniqueFd> ConnectAttachSocket(const std::string& run_dir);

// A channel to the daemon's gRPC socket.
std::shared_ptr<grpc::Channel> ConnectRpc(const std::string& run_dir);

// Thread: one at a time.
class RawClient {
 public:
  // Errors: those of the reply, or of the sockets.
  static absl::StatusOr<RawClient> Attach(const std::string& run_dir,
                                          const std::string& name = "raw");

  // One call with this session's token, or with `token`.
  template <typename Stub, typename Request, typename Reply>
  absl::Status Call(Stub& stub,
                    grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                    const Request& request, Reply* reply) const {
    return CallAs(token_, stub, method, request, reply);
  }
  template <typename Stub, typename Request, typename Reply>
  static absl::Status CallAs(const std::string& token, Stub& stub,
                             grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                          Reply*),
                             const Request& request, Reply* reply) {
    grpc::ClientContext context;
    context.AddMetadata(kTokenKey, token);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    const grpc::Status status = (stub.*method)(&context, request, reply);
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  }

  v1::AdminService::Stub& admin() const { return *admin_; }
  v1::CmService::Stub& cm() const { return *cm_; }
  v1::MemoryService::Stub& memory() const { return *memory_; }
  v1::SessionService::Stub& session() const { return *session_; }
  v1::VerbsService::Stub& verbs() const { return *verbs_; }

  // The descriptor that came for the tag of a reply. Errors: NotFound (none within 5 s).
  absl::StatusOr<UniqueFd> TakeDescriptor(uint64_t tag);

  const v1::AttachReply& reply() const { return reply_; }
  const std::string& token() const { return token_; }
  int socket() const { return socket_.get(); }
  int control_segment() const { return descriptors_[0].get(); }
  int engine_page() const { return descriptors_[1].get(); }
  int wake_pipe() const { return descriptors_[2].get(); }
  int async_channel() const { return descriptors_[3].get(); }
  // Ends the session.
  void HangUp() { socket_.Reset(); }
  // The same, and closes the gRPC connection: no more calls.
  void Disconnect();

 private:
  UniqueFd socket_;
  v1::AttachReply reply_;
  std::string token_;
  std::vector<UniqueFd> descriptors_;
  std::map<uint64_t, UniqueFd> delivered_;
  std::unique_ptr<v1::AdminService::Stub> admin_;
  std::unique_ptr<v1::CmService::Stub> cm_;
  std::unique_ptr<v1::MemoryService::Stub> memory_;
  std::unique_ptr<v1::SessionService::Stub> session_;
  std::unique_ptr<v1::VerbsService::Stub> verbs_;
};

}  // namespace rdmad::testing
