#include "daemon/wire/cm/cm_mra.h"

#include <cstring>

#include "daemon/wire/bytes.h"

namespace rdmad::wire {
namespace {

struct MraBytes {
  uint8_t local_comm_id_be[4];
  uint8_t remote_comm_id_be[4];
  uint8_t message;  // message MRAed:2 | reserved:6
  uint8_t timeout;  // service timeout:5 | reserved:3
  uint8_t private_data[kMraPrivateBytes];
};
static_assert(sizeof(MraBytes) == kMadDataBytes && alignof(MraBytes) == 1);

}  // namespace

CmMra ParseCmMra(MadDataIn data) noexcept {
  MraBytes bytes;
  std::memcpy(&bytes, data.data(), sizeof(bytes));
  CmMra mra;
  mra.local_comm_id = CommId(LoadBe32(bytes.local_comm_id_be));
  mra.remote_comm_id = CommId(LoadBe32(bytes.remote_comm_id_be));
  mra.message = static_cast<CmMessageKind>(bytes.message >> 6);
  mra.service_timeout = bytes.timeout >> 3;
  std::memcpy(mra.private_data.data(), bytes.private_data, kMraPrivateBytes);
  return mra;
}

void BuildCmMra(const CmMra& mra, MadDataOut data) noexcept {
  MraBytes bytes;
  StoreBe32(bytes.local_comm_id_be, mra.local_comm_id.value());
  StoreBe32(bytes.remote_comm_id_be, mra.remote_comm_id.value());
  bytes.message = static_cast<uint8_t>(static_cast<uint8_t>(mra.message) << 6);
  bytes.timeout = static_cast<uint8_t>(mra.service_timeout << 3);
  std::memcpy(bytes.private_data, mra.private_data.data(), kMraPrivateBytes);
  std::memcpy(data.data(), &bytes, sizeof(bytes));
}

}  // namespace rdmad::wire
