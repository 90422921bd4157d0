#include "daemon/wire/cm/cm_drep.h"

#include <cstring>

#include "daemon/wire/bytes.h"

namespace rdmad::wire {
namespace {

struct DrepBytes {
  uint8_t local_comm_id_be[4];
  uint8_t remote_comm_id_be[4];
  uint8_t private_data[kDrepPrivateBytes];
};
static_assert(sizeof(DrepBytes) == kMadDataBytes && alignof(DrepBytes) == 1);

}  // namespace

CmDrep ParseCmDrep(MadDataIn data) noexcept {
  DrepBytes bytes;
  std::memcpy(&bytes, data.data(), sizeof(bytes));
  CmDrep drep;
  drep.local_comm_id = CommId(LoadBe32(bytes.local_comm_id_be));
  drep.remote_comm_id = CommId(LoadBe32(bytes.remote_comm_id_be));
  std::memcpy(drep.private_data.data(), bytes.private_data, kDrepPrivateBytes);
  return drep;
}

void BuildCmDrep(const CmDrep& drep, MadDataOut data) noexcept {
  DrepBytes bytes;
  StoreBe32(bytes.local_comm_id_be, drep.local_comm_id.value());
  StoreBe32(bytes.remote_comm_id_be, drep.remote_comm_id.value());
  std::memcpy(bytes.private_data, drep.private_data.data(), kDrepPrivateBytes);
  std::memcpy(data.data(), &bytes, sizeof(bytes));
}

}  // namespace rdmad::wire
