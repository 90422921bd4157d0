#include "tests/vm/datagrams.h"

#include <arpa/inet.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"

namespace rdmad::testing {
namespace {

absl::StatusOr<Wc> WaitForOne(CompletionQueue& cq, absl::Duration timeout) {
  Wc wc;
  RD_RETURN_IF_ERROR(cq.Wait({&wc, 1}, timeout, WaitStyle::kPolled).status());
  RD_RETURN_IF_ERROR(WcStatusToStatus(wc.status));
  return wc;
}

}  // namespace

absl::StatusOr<Datagrams> Datagrams::Open(const Client& client, CmId& id, Pool& pool, uint32_t slots,
                                          size_t size_bytes) {
  Datagrams out;
  out.size_bytes_ = size_bytes;
  out.slots_ = slots;
  // The last slot is what is sent.
  const size_t all_bytes = (slots + 1) * (size_bytes + kGrhBytes);
  RD_ASSIGN_OR_RETURN(out.buffer_, pool.Allocate(all_bytes));
  RD_ASSIGN_OR_RETURN(out.pd_, id.pd());
  RD_ASSIGN_OR_RETURN(out.mr_, out.pd_.Reg(out.buffer_.data(), all_bytes, kAccessLocalWrite));
  const uint32_t device = id.device_index().value();
  RD_ASSIGN_OR_RETURN(out.sends_, CompletionQueue::Create(client, device, 16));
  RD_ASSIGN_OR_RETURN(out.receives_, CompletionQueue::Create(client, device, slots));
  QpInit init;
  init.type = QpType::kUd;
  init.send_cq = out.sends_;
  init.recv_cq = out.receives_;
  init.cap.max_recv_wr = slots;
  RD_RETURN_IF_ERROR(id.CreateQp(&out.pd_, init));
  out.qp_ = id.qp();
  for (uint64_t i = 0; i < slots; ++i) {
    RD_RETURN_IF_ERROR(out.qp_.PostRecv(i, out.Slot(i), size_bytes + kGrhBytes, &out.mr_));
  }
  // They are with the device: nobody sends a datagram again that finds none.
  RD_RETURN_IF_ERROR(out.qp_.Query().status());
  return out;
}

absl::StatusOr<Wc> Datagrams::Receive(absl::Duration timeout) {
  RD_ASSIGN_OR_RETURN(const Wc wc, WaitForOne(receives_, timeout));
  if (wc.byte_len != size_bytes_ + kGrhBytes || (wc.flags & kWcWithImm) == 0 || ntohl(wc.imm_be) != wc.src_qpn ||
      (wc.flags & kWcGrh) == 0) {
    return absl::DataLossError(absl::StrCat("a datagram of ", wc.byte_len, " bytes with the GRH, flags=", wc.flags,
                                            " imm=", ntohl(wc.imm_be), " src_qpn=", wc.src_qpn));
  }
  return wc;
}

absl::Status Datagrams::Send(const AddressHandle& ah, uint32_t qpn, uint32_t qkey) {
  std::memset(Slot(slots_), 0x5a, size_bytes_);
  const Sge sge{reinterpret_cast<uint64_t>(Slot(slots_)), static_cast<uint32_t>(size_bytes_), mr_.lkey()};
  SendWr wr;
  wr.opcode = WrOpcode::kSendWithImm;
  wr.imm_be = htonl(qp_.qpn());
  wr.sges = {&sge, 1};
  wr.ah = &ah;
  wr.remote_qpn = qpn;
  wr.remote_qkey = qkey;
  RD_RETURN_IF_ERROR(qp_.PostSend({&wr, 1}));
  return WaitForOne(sends_, absl::Seconds(120)).status();
}

absl::StatusOr<AddressHandle> Datagrams::WayBack(const Wc& wc) const {
  return AddressHandle::CreateFromWc(pd_, wc, {Slot(wc.wr_id), kGrhBytes});
}

}  // namespace rdmad::testing
