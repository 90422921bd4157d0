#include "daemon/wire/cm/cm_rtu.h"

#include <cstring>

#include "daemon/wire/bytes.h"

namespace rdmad::wire {
namespace {

struct RtuBytes {
  uint8_t local_comm_id_be[4];
  uint8_t remote_comm_id_be[4];
  uint8_t private_data[kRtuPrivateBytes];
};
static_assert(sizeof(RtuBytes) == kMadDataBytes && alignof(RtuBytes) == 1);

}  // namespace

CmRtu ParseCmRtu(MadDataIn data) noexcept {
  RtuBytes bytes;
  std::memcpy(&bytes, data.data(), sizeof(bytes));
  CmRtu rtu;
  rtu.local_comm_id = CommId(LoadBe32(bytes.local_comm_id_be));
  rtu.remote_comm_id = CommId(LoadBe32(bytes.remote_comm_id_be));
  std::memcpy(rtu.private_data.data(), bytes.private_data, kRtuPrivateBytes);
  return rtu;
}

void BuildCmRtu(const CmRtu& rtu, MadDataOut data) noexcept {
  RtuBytes bytes;
  StoreBe32(bytes.local_comm_id_be, rtu.local_comm_id.value());
  StoreBe32(bytes.remote_comm_id_be, rtu.remote_comm_id.value());
  std::memcpy(bytes.private_data, rtu.private_data.data(), kRtuPrivateBytes);
  std::memcpy(data.data(), &bytes, sizeof(bytes));
}

}  // namespace rdmad::wire
