#include "daemon/wire/cm/cm_sidr.h"

#include <cstring>

#include "daemon/wire/bytes.h"

namespace rdmad::wire {
namespace {

struct SidrReqBytes {
  uint8_t request_id_be[4];
  uint8_t pkey_be[2];
  uint8_t reserved[2];
  uint8_t service_id_be[8];
  uint8_t private_data[kSidrReqPrivateBytes];
};
static_assert(sizeof(SidrReqBytes) == kMadDataBytes && alignof(SidrReqBytes) == 1);

struct SidrRepBytes {
  uint8_t request_id_be[4];
  uint8_t status;
  uint8_t info_length;
  uint8_t reserved1[2];
  uint8_t qpn_be[3];
  uint8_t reserved2;
  uint8_t service_id_be[8];
  uint8_t qkey_be[4];
  uint8_t info[kSidrRepInfoBytes];
  uint8_t private_data[kSidrRepPrivateBytes];
};
static_assert(sizeof(SidrRepBytes) == kMadDataBytes && alignof(SidrRepBytes) == 1);

}  // namespace

const char* SidrStatusName(SidrStatus status) noexcept {
  switch (status) {
    case SidrStatus::kSuccess:
      return "success";
    case SidrStatus::kUnsupportedServiceId:
      return "unsupported_service_id";
    case SidrStatus::kRejected:
      return "rejected";
    case SidrStatus::kNoQp:
      return "no_qp";
    case SidrStatus::kRedirect:
      return "redirect";
    case SidrStatus::kUnsupportedVersion:
      return "unsupported_version";
  }
  return "unknown";
}

CmSidrReq ParseCmSidrReq(MadDataIn data) noexcept {
  SidrReqBytes bytes;
  std::memcpy(&bytes, data.data(), sizeof(bytes));
  CmSidrReq req;
  req.request_id = CommId(LoadBe32(bytes.request_id_be));
  req.pkey = PKey(LoadBe16(bytes.pkey_be));
  req.service_id = LoadBe64(bytes.service_id_be);
  std::memcpy(req.private_data.data(), bytes.private_data, kSidrReqPrivateBytes);
  return req;
}

void BuildCmSidrReq(const CmSidrReq& req, MadDataOut data) noexcept {
  SidrReqBytes bytes{};
  StoreBe32(bytes.request_id_be, req.request_id.value());
  StoreBe16(bytes.pkey_be, static_cast<uint16_t>(req.pkey.value()));
  StoreBe64(bytes.service_id_be, req.service_id);
  std::memcpy(bytes.private_data, req.private_data.data(), kSidrReqPrivateBytes);
  std::memcpy(data.data(), &bytes, sizeof(bytes));
}

CmSidrRep ParseCmSidrRep(MadDataIn data) noexcept {
  SidrRepBytes bytes;
  std::memcpy(&bytes, data.data(), sizeof(bytes));
  CmSidrRep rep;
  rep.request_id = CommId(LoadBe32(bytes.request_id_be));
  rep.status = static_cast<SidrStatus>(bytes.status);
  rep.info_bytes = bytes.info_length;
  rep.qpn = Qpn(LoadBe24(bytes.qpn_be));
  rep.service_id = LoadBe64(bytes.service_id_be);
  rep.qkey = Qkey(LoadBe32(bytes.qkey_be));
  std::memcpy(rep.info.data(), bytes.info, kSidrRepInfoBytes);
  std::memcpy(rep.private_data.data(), bytes.private_data, kSidrRepPrivateBytes);
  return rep;
}

void BuildCmSidrRep(const CmSidrRep& rep, MadDataOut data) noexcept {
  SidrRepBytes bytes{};
  StoreBe32(bytes.request_id_be, rep.request_id.value());
  bytes.status = static_cast<uint8_t>(rep.status);
  bytes.info_length = rep.info_bytes;
  StoreBe24(bytes.qpn_be, rep.qpn.value());
  StoreBe64(bytes.service_id_be, rep.service_id);
  StoreBe32(bytes.qkey_be, rep.qkey.value());
  std::memcpy(bytes.info, rep.info.data(), kSidrRepInfoBytes);
  std::memcpy(bytes.private_data, rep.private_data.data(), kSidrRepPrivateBytes);
  std::memcpy(data.data(), &bytes, sizeof(bytes));
}

}  // namespace rdmad::wire
