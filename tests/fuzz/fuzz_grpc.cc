// What anybody who may connect to rdmad.sock could send there.
#include <cstdlib>
#include <optional>
#include <string_view>
#include <vector>

#include "daemon/control/grpc_protocol.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace rdmad::fuzz {

using control::GrpcProtocol;

void FuzzGrpc(std::span<const uint8_t> bytes) {
  Input input(bytes);
  GrpcProtocol protocol;
  std::vector<int32_t> open;  // calls that are not answered yet
  while (!input.empty()) {
    const auto how = input.Take<uint8_t>();
    const std::span<const uint8_t> piece = input.TakeBytes(input.Take<uint16_t>());
    const bool goes_on =
        protocol.Receive({reinterpret_cast<const char*>(piece.data()), piece.size()});
    while (const std::optional<GrpcProtocol::Call> call = protocol.TakeCall()) {
      if (call->request.size() > GrpcProtocol::kMaxRequestBytes) std::abort();
      open.push_back(call->stream);
    }
    if (open.size() != protocol.unanswered() || open.size() > GrpcProtocol::kMaxCalls) std::abort();
    if ((how & 1) != 0 && !open.empty()) {
      const absl::Status status = (how & 2) != 0 ? absl::InternalError("why") : absl::OkStatus();
      protocol.Respond(open.back(), status, std::string(size_t{how} * 100, 'r'));
      open.pop_back();
    }
    if ((how & 4) != 0) {
      while (!protocol.Output().empty()) continue;
    }
    if ((how & 0xf0) == 0xf0) protocol.Terminate();
    if (!goes_on || protocol.over()) return;
  }
}

}  // namespace rdmad::fuzz
