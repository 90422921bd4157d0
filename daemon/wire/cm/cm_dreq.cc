#include "daemon/wire/cm/cm_dreq.h"

#include <cstring>

#include "daemon/wire/bytes.h"

namespace rdmad::wire {
namespace {

struct DreqBytes {
  uint8_t local_comm_id_be[4];
  uint8_t remote_comm_id_be[4];
  uint8_t remote_qpn_be[3];
  uint8_t reserved;
  uint8_t private_data[kDreqPrivateBytes];
};
static_assert(sizeof(DreqBytes) == kMadDataBytes && alignof(DreqBytes) == 1);

}  // namespace

CmDreq ParseCmDreq(MadDataIn data) noexcept {
  DreqBytes bytes;
  std::memcpy(&bytes, data.data(), sizeof(bytes));
  CmDreq dreq;
  dreq.local_comm_id = CommId(LoadBe32(bytes.local_comm_id_be));
  dreq.remote_comm_id = CommId(LoadBe32(bytes.remote_comm_id_be));
  dreq.remote_qpn = Qpn(LoadBe24(bytes.remote_qpn_be));
  std::memcpy(dreq.private_data.data(), bytes.private_data, kDreqPrivateBytes);
  return dreq;
}

void BuildCmDreq(const CmDreq& dreq, MadDataOut data) noexcept {
  DreqBytes bytes{};
  StoreBe32(bytes.local_comm_id_be, dreq.local_comm_id.value());
  StoreBe32(bytes.remote_comm_id_be, dreq.remote_comm_id.value());
  StoreBe24(bytes.remote_qpn_be, dreq.remote_qpn.value());
  std::memcpy(bytes.private_data, dreq.private_data.data(), kDreqPrivateBytes);
  std::memcpy(data.data(), &bytes, sizeof(bytes));
}

}  // namespace rdmad::wire
