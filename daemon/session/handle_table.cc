#include "daemon/session/handle_table.h"

#include "absl/strings/str_format.h"

namespace rdmad::session {

const char* HandleKindName(uint8_t kind) noexcept {
  switch (static_cast<HandleKind>(kind)) {
    case HandleKind::kNone:
      break;
    case HandleKind::kPool:
      return "pool";
    case HandleKind::kRegion:
      return "region";
    case HandleKind::kPd:
      return "pd";
    case HandleKind::kCompletionChannel:
      return "completion channel";
    case HandleKind::kCq:
      return "cq";
    case HandleKind::kQp:
      return "qp";
    case HandleKind::kEventChannel:
      return "event channel";
    case HandleKind::kCmId:
      return "cm id";
    case HandleKind::kSrq:
      return "srq";
    case HandleKind::kAh:
      return "address handle";
    case HandleKind::kMw:
      return "memory window";
    case HandleKind::kMulticast:
      return "multicast attachment";
  }
  return "nothing";
}

std::string HandleText(HandleKind kind, Handle handle) {
  return absl::StrFormat("%s %#x", HandleKindName(static_cast<uint8_t>(kind)), handle);
}

}  // namespace rdmad::session
