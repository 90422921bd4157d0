// Datagrams between a queue pair of our soft device and one of the kernel's, every byte checked.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "daemon/base/unique_fd.h"
#include "rdmad/rdmad.h"
#include "tests/support/status_testing.h"
#include "tests/vm/kernel_qp.h"
#include "tests/vm/rxe_verbs_bed.h"

namespace rdmad::testing {
namespace {

// Datagrams by hand, to a QP and, over IPv6, whose groups the kernel's rdma_cm does not join, to a group.
class RxeUd : public RxeVerbs {
 protected:
  // Of the kernel, to us or to a group.
  void KernelSends(const std::array<uint8_t, 16>& gid, uint32_t qpn, size_t bytes) {
    ibv_ah_attr attr = {};
    attr.is_global = 1;
    attr.port_num = 1;
    std::memcpy(attr.grh.dgid.raw, gid.data(), gid.size());
    attr.grh.sgid_index = kernel_->gid_index;
    attr.grh.hop_limit = 64;
    const VerbsPtr<ibv_ah, ibv_destroy_ah> ah(ibv_create_ah(kernel_->pd.get(), &attr));
    ASSERT_NE(ah, nullptr) << std::strerror(errno);
    ibv_send_wr wr = {};
    wr.opcode = IBV_WR_SEND_WITH_IMM;
    wr.imm_data = htonl(kImm);
    wr.wr.ud = {.ah = ah.get(), .remote_qpn = qpn, .remote_qkey = o_->qkey};
    KernelDoes(wr, 0, bytes);
  }
  void WeSend(const std::array<uint8_t, 16>& gid, uint32_t qpn, size_t bytes) {
    ASSERT_OK_AND_ASSIGN(const AddressHandle ah,
                         AddressHandle::Create(ours_->pd, {.dest_gid = gid, .sgid_index = ours_->gid.index}));
    SendWr wr;
    wr.opcode = WrOpcode::kSendWithImm;
    wr.imm_be = htonl(kImm);
    wr.ah = &ah;
    wr.remote_qpn = qpn;
    wr.remote_qkey = k_->qkey;
    WeDo(wr, 0, bytes);
  }
  // One that is sent until it arrives, at a QP or the members of a group.
  void KernelTellsUs(const std::array<uint8_t, 16>& gid, uint32_t qpn, size_t bytes) {
    WePostReceive(bytes + kGrhBytes);
    UntilItArrives("datagram of the kernel", bytes, [&] {
      Prepare(kernel_->data(), ours_->buffer.data() + kSink, bytes + kGrhBytes);
      KernelSends(gid, qpn, bytes);
      const absl::StatusOr<Wc> wc = o_->NextReceive(kUnreliablePatience);
      if (absl::IsDeadlineExceeded(wc.status())) return false;
      EXPECT_OK(wc);
      if (!wc.ok()) return false;
      EXPECT_EQ(wc->status, WcStatus::kSuccess) << WcStatusString(wc->status);
      EXPECT_EQ(wc->byte_len, bytes + kGrhBytes);
      EXPECT_EQ(wc->src_qpn, k_->qp->qp_num);
      EXPECT_EQ(wc->imm_be, htonl(kImm));
      ExpectSame(ours_->buffer.data() + kSink + kGrhBytes, kernel_->data(), bytes, "datagram");
      return true;
    });
  }
  void WeTellTheKernel(const std::array<uint8_t, 16>& gid, uint32_t qpn, size_t bytes) {
    ASSERT_OK(k_->PostReceive(*kernel_, kSink, bytes + kGrhBytes));
    UntilItArrives("datagram of ours", bytes, [&] {
      Prepare(ours_->buffer.data(), kernel_->data() + kSink, bytes + kGrhBytes);
      WeSend(gid, qpn, bytes);
      const absl::StatusOr<ibv_wc> wc = k_->NextReceive(kUnreliablePatience);
      if (absl::IsDeadlineExceeded(wc.status())) return false;
      EXPECT_OK(wc);
      if (!wc.ok()) return false;
      EXPECT_EQ(wc->status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc->status);
      EXPECT_EQ(wc->byte_len, bytes + kGrhBytes);
      EXPECT_EQ(wc->src_qp, o_->qp.qpn());
      EXPECT_EQ(wc->imm_data, htonl(kImm));
      ExpectSame(kernel_->data() + kSink + kGrhBytes, ours_->buffer.data(), bytes, "datagram");
      return true;
    });
  }
  void Talk() {
    for (const size_t bytes : {size_t{0}, size_t{1}, InOnePacket(4096) - 1, InOnePacket(4096)}) {
      KernelTellsUs(ours_->gid.raw, o_->qp.qpn(), bytes);
      if (HasFailure()) return;
      WeTellTheKernel(kernel_->gid, k_->qp->qp_num, bytes);
      if (HasFailure()) return;
    }
  }
};

TEST_F(RxeUd, BothWaysOverIpv4) {
  Wire(QpType::kUd, kIpv4);
  ASSERT_FALSE(HasFatalFailure());
  Talk();
}

TEST_F(RxeUd, BothWaysOverIpv6) {
  Wire(QpType::kUd, kIpv6);
  ASSERT_FALSE(HasFatalFailure());
  Talk();
}

TEST_F(RxeUd, GroupsOfIpv6BothWays) {
  Wire(QpType::kUd, kIpv6);
  ASSERT_FALSE(HasFatalFailure());
  const std::array<uint8_t, 16> group = GidOf("ff0e::77");
  // The kernel's device takes what its IP stack lets in.
  const UniqueFd member(::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ipv6_mreq request = {};
  std::memcpy(&request.ipv6mr_multiaddr, group.data(), group.size());
  request.ipv6mr_interface = ::if_nametoindex("vA");
  ASSERT_EQ(::setsockopt(member.get(), IPPROTO_IPV6, IPV6_JOIN_GROUP, &request, sizeof(request)), 0)
      << std::strerror(errno);
  ibv_gid gid;
  std::memcpy(gid.raw, group.data(), group.size());
  ASSERT_EQ(ibv_attach_mcast(k_->qp.get(), &gid, 0), 0);
  WeTellTheKernel(group, kMulticastQpn, 1000);
  ASSERT_EQ(ibv_detach_mcast(k_->qp.get(), &gid, 0), 0);

  ASSERT_OK(o_->qp.AttachMulticast(group));
  KernelTellsUs(group, kMulticastQpn, 1000);
  EXPECT_OK(o_->qp.DetachMulticast(group));
}

}  // namespace
}  // namespace rdmad::testing
