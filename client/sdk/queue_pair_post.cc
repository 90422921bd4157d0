// The posting calls of rdma_verbs.h, each one WR.
#include "absl/strings/str_cat.h"
#include "client/sdk/one_sge.h"
#include "client/sdk/queue_pair.h"
#include "rdmad/verbs.h"

namespace rdmad {

using sdk::OneSge;
using sdk::TooLong;

namespace {

// A WR that names memory of the peer.
SendWr RemoteWr(WrOpcode opcode, uint64_t wr_id, std::span<const Sge> sges, uint32_t flags, uint64_t remote_addr,
                uint32_t rkey) noexcept {
  SendWr wr;
  wr.wr_id = wr_id;
  wr.opcode = opcode;
  wr.flags = flags;
  wr.sges = sges;
  wr.remote_addr = remote_addr;
  wr.rkey = rkey;
  return wr;
}

}  // namespace

absl::Status QueuePair::PostSend(std::span<const SendWr> wrs, size_t* posted) noexcept {
  return state_->PostSend(wrs, posted);
}

absl::Status QueuePair::PostRecv(std::span<const RecvWr> wrs, size_t* posted) noexcept {
  return state_->PostRecv(wrs, posted);
}

absl::Status QueuePair::PostSend(uint64_t wr_id, const void* addr, size_t length_bytes, const MemoryRegion* mr,
                                 uint32_t flags) noexcept {
  const OneSge one(addr, length_bytes, mr);
  return one.fits ? PostSendv(wr_id, one.span(), flags) : TooLong("post_send", length_bytes);
}

absl::Status QueuePair::PostSendv(uint64_t wr_id, std::span<const Sge> sges, uint32_t flags) noexcept {
  SendWr wr;
  wr.wr_id = wr_id;
  wr.flags = flags;
  wr.sges = sges;
  return state_->PostSend({&wr, 1}, nullptr);
}

absl::Status QueuePair::PostRecv(uint64_t wr_id, void* addr, size_t length_bytes, const MemoryRegion* mr) noexcept {
  const OneSge one(addr, length_bytes, mr);
  return one.fits ? PostRecvv(wr_id, one.span()) : TooLong("post_recv", length_bytes);
}

absl::Status QueuePair::PostRecvv(uint64_t wr_id, std::span<const Sge> sges) noexcept {
  const RecvWr wr{wr_id, sges};
  return state_->PostRecv({&wr, 1}, nullptr);
}

absl::Status QueuePair::PostRead(uint64_t wr_id, void* addr, size_t length_bytes, const MemoryRegion* mr,
                                 uint32_t flags, uint64_t remote_addr, uint32_t rkey) noexcept {
  const OneSge one(addr, length_bytes, mr);
  return one.fits ? PostReadv(wr_id, one.span(), flags, remote_addr, rkey) : TooLong("post_read", length_bytes);
}

absl::Status QueuePair::PostReadv(uint64_t wr_id, std::span<const Sge> sges, uint32_t flags, uint64_t remote_addr,
                                  uint32_t rkey) noexcept {
  const SendWr wr = RemoteWr(WrOpcode::kRdmaRead, wr_id, sges, flags, remote_addr, rkey);
  return state_->PostSend({&wr, 1}, nullptr);
}

absl::Status QueuePair::PostWrite(uint64_t wr_id, const void* addr, size_t length_bytes, const MemoryRegion* mr,
                                  uint32_t flags, uint64_t remote_addr, uint32_t rkey) noexcept {
  const OneSge one(addr, length_bytes, mr);
  return one.fits ? PostWritev(wr_id, one.span(), flags, remote_addr, rkey) : TooLong("post_write", length_bytes);
}

absl::Status QueuePair::PostWritev(uint64_t wr_id, std::span<const Sge> sges, uint32_t flags, uint64_t remote_addr,
                                   uint32_t rkey) noexcept {
  const SendWr wr = RemoteWr(WrOpcode::kRdmaWrite, wr_id, sges, flags, remote_addr, rkey);
  return state_->PostSend({&wr, 1}, nullptr);
}

absl::Status QueuePair::PostUdSend(uint64_t wr_id, const void* addr, size_t length_bytes, const MemoryRegion* mr,
                                   uint32_t flags, const AddressHandle& ah, uint32_t remote_qpn,
                                   uint32_t remote_qkey) noexcept {
  const OneSge one(addr, length_bytes, mr);
  if (!one.fits) return TooLong("post_ud_send", length_bytes);
  SendWr wr;
  wr.wr_id = wr_id;
  wr.flags = flags;
  wr.sges = one.span();
  wr.ah = &ah;
  wr.remote_qpn = remote_qpn;
  wr.remote_qkey = remote_qkey;
  return state_->PostSend({&wr, 1}, nullptr);
}

absl::Status QueuePair::PostCompareSwap(uint64_t wr_id, void* addr, const MemoryRegion* mr, uint32_t flags,
                                        uint64_t remote_addr, uint32_t rkey, uint64_t compare, uint64_t swap) noexcept {
  const OneSge one(addr, sizeof(uint64_t), mr);
  SendWr wr = RemoteWr(WrOpcode::kCompareSwap, wr_id, one.span(), flags, remote_addr, rkey);
  wr.compare_add = compare;
  wr.swap = swap;
  return state_->PostSend({&wr, 1}, nullptr);
}

absl::Status QueuePair::PostFetchAdd(uint64_t wr_id, void* addr, const MemoryRegion* mr, uint32_t flags,
                                     uint64_t remote_addr, uint32_t rkey, uint64_t add) noexcept {
  const OneSge one(addr, sizeof(uint64_t), mr);
  SendWr wr = RemoteWr(WrOpcode::kFetchAdd, wr_id, one.span(), flags, remote_addr, rkey);
  wr.compare_add = add;
  return state_->PostSend({&wr, 1}, nullptr);
}

absl::Status QueuePair::PostBind(uint64_t wr_id, MemoryWindow* mw, const MemoryRegion& mr, const void* addr,
                                 size_t length_bytes, uint32_t access, uint32_t flags) noexcept {
  const MwBind bind = {.rkey = MemoryWindow::NextKey(mw->rkey()),
                       .mr = &mr,
                       .addr = addr,
                       .length_bytes = length_bytes,
                       .access = access};
  SendWr wr;
  wr.wr_id = wr_id;
  wr.opcode = WrOpcode::kBindMw;
  wr.flags = flags;
  wr.bind = &bind;
  absl::Status status = state_->PostSend({&wr, 1}, nullptr);
  if (status.ok()) mw->set_rkey(bind.rkey);
  return status;
}

absl::Status QueuePair::PostLocalInv(uint64_t wr_id, uint32_t rkey, uint32_t flags) noexcept {
  SendWr wr;
  wr.wr_id = wr_id;
  wr.opcode = WrOpcode::kLocalInv;
  wr.flags = flags;
  wr.imm_be = rkey;
  return state_->PostSend({&wr, 1}, nullptr);
}

}  // namespace rdmad
