// Messages of connection managers on a PacketWire, which a test looks at and alters: what no
// application can make a daemon say, another implementation might.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <variant>

#include "tests/support/packet_wire.h"

namespace rdmad::testing {

// Reasons of a REJ. Source: IBTA vol. 1, REJ, Rejection Reason.
enum : uint16_t {
  kRejTimeout = 4,
  kRejUnsupported = 5,
  kRejInvalidCommId = 6,
  kRejInvalidServiceId = 8,
  kRejInvalidTransport = 9,
  kRejStale = 10,
  kRejInvalidGid = 12,
  kRejInvalidMtu = 26,
  kRejDuplicateCommId = 30,
  kRejReasons = 33,
};
inline constexpr size_t kRejDataBytes = 148;

// The fields that tests are about, in host order.
struct ReqOnTheWire {
  uint32_t comm_id = 0;  // the asking side's
  uint64_t service_id = 0;
  uint8_t transport = 0;  // 0: RC, 1: UC, 2: RD
  uint8_t path_mtu = 0;   // code
  std::array<uint8_t, 16> from{};
  std::array<uint8_t, 16> to{};
  uint8_t annex_version = 0;  // of the RDMA IP CM annex: major, minor
};
struct RejOnTheWire {
  bool of_rep = false;  // or of a REQ
  uint32_t remote_comm_id = 0;
  uint16_t reason = 0;
};
struct RtuOnTheWire {};
// The first: any other message.
using CmOnTheWire = std::variant<std::monostate, ReqOnTheWire, RejOnTheWire, RtuOnTheWire>;

using CmBend = std::function<WireVerdict(WireDirection direction, CmOnTheWire& message)>;

// Calls `bend` for each message of a CM; what it changes is in the packet then, with a good ICRC.
WireHook BendingCm(CmBend bend);

}  // namespace rdmad::testing
