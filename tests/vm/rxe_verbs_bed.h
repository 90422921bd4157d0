// A queue pair of our soft device and one of the kernel's, wired by hand to each other, with memory on both sides.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>

#include "rdmad/rdmad.h"
#include "tests/vm/kernel_qp.h"
#include "tests/vm/our_qp.h"
#include "tests/vm/rxe_bed.h"

namespace rdmad::testing {

inline constexpr size_t kBytes = 1 << 20;
// What is sent lies at 0, what arrives here.
inline constexpr size_t kSink = kBytes / 2;
inline constexpr uint32_t kImm = 0xcafe1234;

// Nothing, less than four bytes, one packet, one byte more, and many of either MTU.
inline constexpr std::array<size_t, 6> kSizes = {0, 1, 1024, 4096, 4097, 300001};

class RxeVerbs : public RxeInterop {
 protected:
  // Both QPs, in Reset, and their memory.
  void Open(QpType type, const Addresses& addresses);
  // And moves them to RTS.
  void Wire(QpType type, const Addresses& addresses, Mtu mtu = Mtu::k4096);

  void TearDown() override;

  uint64_t OurAddr(size_t offset) const { return reinterpret_cast<uint64_t>(ours_->buffer.data() + offset); }
  uint64_t KernelAddr(size_t offset) const { return reinterpret_cast<uint64_t>(kernel_->data() + offset); }

  // One work request of the kernel on its memory; ends well.
  void KernelDoes(ibv_send_wr wr, size_t offset, size_t bytes, ibv_wc_status expected = IBV_WC_SUCCESS);
  // One of ours.
  void WeDo(SendWr wr, size_t offset, size_t bytes, WcStatus expected = WcStatus::kSuccess);
  // Work requests on the peer's sink.
  ibv_send_wr OnOurs(ibv_wr_opcode opcode, uint32_t rkey) const;
  ibv_send_wr OnOurs(ibv_wr_opcode opcode) const { return OnOurs(opcode, ours_->mr.rkey()); }
  SendWr OnKernels(WrOpcode opcode, uint32_t rkey) const;
  SendWr OnKernels(WrOpcode opcode) const { return OnKernels(opcode, kernel_->mr->rkey); }

  // The device has it when this returns, unless a sender can be made to wait for it (RC).
  void WePostReceive(size_t bytes);
  // False: nothing came, which over UC is no fault. Whatever else is wrong fails the test.
  bool WeReceive(size_t bytes, WcOpcode opcode, uint32_t flags);
  bool KernelReceives(size_t bytes, ibv_wc_opcode opcode, unsigned flags);
  void ExpectWeReceived(size_t bytes, WcOpcode opcode, uint32_t flags) { EXPECT_TRUE(WeReceive(bytes, opcode, flags)); }
  void ExpectKernelReceived(size_t bytes, ibv_wc_opcode opcode, unsigned flags) {
    EXPECT_TRUE(KernelReceives(bytes, opcode, flags));
  }

  // Skips what earlier tests have left.
  void ExpectAsyncEventOfOurQp(AsyncEventType expected);

  bool reliable() const { return o_->qp.type() == QpType::kRc; }
  absl::Duration patience() const { return reliable() ? kPatience : kUnreliablePatience; }
  // Does `once` until it is true: a reliable message arrives the first time, of the others one in kUnreliableTries.
  void UntilItArrives(const char* what, size_t bytes, const std::function<bool()>& once);

  void Prepare(std::byte* source, std::byte* sink, size_t bytes);
  static void ExpectSame(const std::byte* sink, const std::byte* source, size_t bytes, const char* what);
  // Whether the write is there. Over UC it may not be, or end where a packet was lost.
  bool WriteArrived(const std::byte* sink, const std::byte* source, size_t bytes);

  void KernelSendsAndWrites();
  void WeSendAndWrite();

  std::unique_ptr<KernelHost> kernel_;
  std::optional<OurHost> ours_;
  std::optional<KernelQp> k_;
  std::optional<OurQp> o_;
  size_t seed_ = 0;
  // Of both. Count at Wire().
  uint8_t rnr_retries_ = 7;  // 7: for ever
  Route route_;
};

}  // namespace rdmad::testing
