#include "daemon/wire/cm/cm_message.h"

namespace rdmad::wire {
namespace {

// One overload per message, so that BuildCmMad can visit.
void Build(const CmReq& m, MadDataOut data) noexcept {
  BuildCmReq(m, data);
}
void Build(const CmMra& m, MadDataOut data) noexcept {
  BuildCmMra(m, data);
}
void Build(const CmRej& m, MadDataOut data) noexcept {
  BuildCmRej(m, data);
}
void Build(const CmRep& m, MadDataOut data) noexcept {
  BuildCmRep(m, data);
}
void Build(const CmRtu& m, MadDataOut data) noexcept {
  BuildCmRtu(m, data);
}
void Build(const CmDreq& m, MadDataOut data) noexcept {
  BuildCmDreq(m, data);
}
void Build(const CmDrep& m, MadDataOut data) noexcept {
  BuildCmDrep(m, data);
}
void Build(const CmSidrReq& m, MadDataOut data) noexcept {
  BuildCmSidrReq(m, data);
}
void Build(const CmSidrRep& m, MadDataOut data) noexcept {
  BuildCmSidrRep(m, data);
}

MadDropReason ParseRej(MadDataIn data, CmMessage* message) noexcept {
  const CmRej rej = ParseCmRej(data);
  if (rej.info_bytes > kRejInfoBytes) return MadDropReason::kBadField;
  *message = rej;
  return MadDropReason::kNone;
}

MadDropReason ParseSidrRep(MadDataIn data, CmMessage* message) noexcept {
  const CmSidrRep rep = ParseCmSidrRep(data);
  if (rep.info_bytes > kSidrRepInfoBytes) return MadDropReason::kBadField;
  *message = rep;
  return MadDropReason::kNone;
}

}  // namespace

CmAttribute AttributeOf(const CmMessage& message) noexcept {
  return std::visit([](const auto& m) { return m.kAttribute; }, message);
}

MadDropReason ParseCmMessage(std::span<const uint8_t> mad, MadHeader* header,
                             CmMessage* message) noexcept {
  const MadDropReason reason = CheckCmMad(mad, header);
  if (reason != MadDropReason::kNone) return reason;
  const MadDataIn data = mad.first<kMadBytes>().last<kMadDataBytes>();
  switch (header->attribute) {
    case CmAttribute::kReq:
      *message = ParseCmReq(data);
      return MadDropReason::kNone;
    case CmAttribute::kMra:
      *message = ParseCmMra(data);
      return MadDropReason::kNone;
    case CmAttribute::kRej:
      return ParseRej(data, message);
    case CmAttribute::kRep:
      *message = ParseCmRep(data);
      return MadDropReason::kNone;
    case CmAttribute::kRtu:
      *message = ParseCmRtu(data);
      return MadDropReason::kNone;
    case CmAttribute::kDreq:
      *message = ParseCmDreq(data);
      return MadDropReason::kNone;
    case CmAttribute::kDrep:
      *message = ParseCmDrep(data);
      return MadDropReason::kNone;
    case CmAttribute::kSidrReq:
      *message = ParseCmSidrReq(data);
      return MadDropReason::kNone;
    case CmAttribute::kSidrRep:
      return ParseSidrRep(data, message);
    case CmAttribute::kClassPortInfo:
    case CmAttribute::kLap:
    case CmAttribute::kApr:
      break;
  }
  return MadDropReason::kBadAttribute;
}

void BuildCmMad(uint64_t transaction_id, const CmMessage& message, MadOut mad) noexcept {
  MadHeader header;
  header.transaction_id = transaction_id;
  header.attribute = AttributeOf(message);
  BuildMadHeader(header, mad);
  std::visit([data = mad.last<kMadDataBytes>()](const auto& m) { Build(m, data); }, message);
}

}  // namespace rdmad::wire
