#include "daemon/wire/cm/mad.h"

#include <cstddef>
#include <cstring>

#include "daemon/wire/bytes.h"

namespace rdmad::wire {
namespace {

struct MadHeaderBytes {
  uint8_t base_version;
  uint8_t mgmt_class;
  uint8_t class_version;
  uint8_t method;  // R:1 | method:7
  uint8_t status_be[2];
  uint8_t class_specific_be[2];
  uint8_t transaction_id_be[8];
  uint8_t attribute_id_be[2];
  uint8_t reserved[2];
  uint8_t attribute_modifier_be[4];
};
static_assert(sizeof(MadHeaderBytes) == kMadHeaderBytes && alignof(MadHeaderBytes) == 1);
static_assert(offsetof(MadHeaderBytes, attribute_id_be) == 16);

}  // namespace

const char* CmAttributeName(CmAttribute attribute) noexcept {
  switch (attribute) {
    case CmAttribute::kClassPortInfo:
      return "CLASS_PORT_INFO";
    case CmAttribute::kReq:
      return "REQ";
    case CmAttribute::kMra:
      return "MRA";
    case CmAttribute::kRej:
      return "REJ";
    case CmAttribute::kRep:
      return "REP";
    case CmAttribute::kRtu:
      return "RTU";
    case CmAttribute::kDreq:
      return "DREQ";
    case CmAttribute::kDrep:
      return "DREP";
    case CmAttribute::kSidrReq:
      return "SIDR_REQ";
    case CmAttribute::kSidrRep:
      return "SIDR_REP";
    case CmAttribute::kLap:
      return "LAP";
    case CmAttribute::kApr:
      return "APR";
  }
  return "UNKNOWN";
}

const char* MadDropReasonName(MadDropReason reason) noexcept {
  switch (reason) {
    case MadDropReason::kNone:
      return "none";
    case MadDropReason::kBadSize:
      return "bad_size";
    case MadDropReason::kBadBase:
      return "bad_base";
    case MadDropReason::kNotCm:
      return "not_cm";
    case MadDropReason::kBadVersion:
      return "bad_version";
    case MadDropReason::kBadMethod:
      return "bad_method";
    case MadDropReason::kBadAttribute:
      return "bad_attribute";
    case MadDropReason::kBadField:
      return "bad_field";
  }
  return "unknown";
}

MadHeader ParseMadHeader(MadIn mad) noexcept {
  MadHeaderBytes bytes;
  std::memcpy(&bytes, mad.data(), sizeof(bytes));
  MadHeader header;
  header.base_version = bytes.base_version;
  header.mgmt_class = bytes.mgmt_class;
  header.class_version = bytes.class_version;
  header.method = bytes.method;
  header.status = LoadBe16(bytes.status_be);
  header.class_specific = LoadBe16(bytes.class_specific_be);
  header.transaction_id = LoadBe64(bytes.transaction_id_be);
  header.attribute = static_cast<CmAttribute>(LoadBe16(bytes.attribute_id_be));
  header.attribute_modifier = LoadBe32(bytes.attribute_modifier_be);
  return header;
}

void BuildMadHeader(const MadHeader& header, MadOut mad) noexcept {
  MadHeaderBytes bytes{};
  bytes.base_version = header.base_version;
  bytes.mgmt_class = header.mgmt_class;
  bytes.class_version = header.class_version;
  bytes.method = header.method;
  StoreBe16(bytes.status_be, header.status);
  StoreBe16(bytes.class_specific_be, header.class_specific);
  StoreBe64(bytes.transaction_id_be, header.transaction_id);
  StoreBe16(bytes.attribute_id_be, static_cast<uint16_t>(header.attribute));
  StoreBe32(bytes.attribute_modifier_be, header.attribute_modifier);
  std::memcpy(mad.data(), &bytes, sizeof(bytes));
}

MadDropReason CheckCmMad(std::span<const uint8_t> mad, MadHeader* header) noexcept {
  if (mad.size() != kMadBytes) return MadDropReason::kBadSize;
  *header = ParseMadHeader(mad.first<kMadBytes>());
  if (header->base_version != kMadBaseVersion) return MadDropReason::kBadBase;
  if (header->mgmt_class != kMadClassCm) return MadDropReason::kNotCm;
  if (header->class_version != kCmClassVersion) return MadDropReason::kBadVersion;
  if (header->method != kMadMethodSend) return MadDropReason::kBadMethod;
  return MadDropReason::kNone;
}

}  // namespace rdmad::wire
