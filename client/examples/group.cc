// Datagrams to a multicast group: whoever listens hears what anyone says.
//
//   group listen 127.0.0.2 239.47.91.1 [COUNT]   prints COUNT messages (by default until it is stopped)
//   group say 127.0.0.3 239.47.91.1 TEXT         the first address is this host's own
//
// RDMAD_RUN_DIR says which daemon; the host's own address must be one of that daemon's.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "rdmad/rdmad.h"

namespace {

constexpr size_t kMaxTextBytes = 512;
constexpr size_t kReceiveBytes = rdmad::kGrhBytes + kMaxTextBytes;  // the GRH says where a datagram comes from
constexpr uint32_t kReceives = 16;

// A member of the group: an id of the UDP port space, which needs no peer, with its QP and memory.
struct Member {
  std::unique_ptr<rdmad::CmId> id;
  rdmad::Buffer memory;
  rdmad::MemoryRegion region;
};

absl::StatusOr<Member> Join(const rdmad::Client& client, const std::string& local, const std::string& group,
                            rdmad::MulticastJoin how) {
  const absl::StatusOr<rdmad::Address> local_address = rdmad::Address::Parse(local);
  if (!local_address.ok()) return local_address.status();
  const absl::StatusOr<rdmad::Address> group_address = rdmad::Address::Parse(group);
  if (!group_address.ok()) return group_address.status();

  Member member;
  absl::StatusOr<std::unique_ptr<rdmad::CmId>> id = rdmad::CmId::Create(client, nullptr, rdmad::PortSpace::kUdp);
  if (!id.ok()) return id.status();
  member.id = *std::move(id);
  if (absl::Status bound = member.id->BindAddr(*local_address); !bound.ok()) return bound;
  rdmad::QpInit init;
  init.type = rdmad::QpType::kUd;
  init.cap.max_recv_wr = kReceives;
  if (absl::Status made = member.id->CreateQp(nullptr, init); !made.ok()) return made;

  absl::StatusOr<rdmad::Pool> pool = rdmad::Pool::Create(client, kReceives * kReceiveBytes);
  if (!pool.ok()) return pool.status();
  absl::StatusOr<rdmad::Buffer> memory = pool->Allocate(kReceives * kReceiveBytes);
  if (!memory.ok()) return memory.status();
  member.memory = *std::move(memory);
  absl::StatusOr<rdmad::MemoryRegion> region = member.id->RegMsgs(member.memory.data(), member.memory.size());
  if (!region.ok()) return region.status();
  member.region = *region;

  if (absl::Status joined = member.id->JoinMulticast(*group_address, 0, how); !joined.ok()) return joined;
  return member;
}

absl::Status Listen(const rdmad::Client& client, const std::string& local, const std::string& group, long count) {
  absl::StatusOr<Member> member = Join(client, local, group, rdmad::MulticastJoin::kFullMember);
  if (!member.ok()) return member.status();
  const auto post = [&](uint64_t slot) {
    return member->id->qp().PostRecv(slot, member->memory.data() + slot * kReceiveBytes, kReceiveBytes,
                                     &member->region);
  };
  for (uint64_t slot = 0; slot < kReceives; ++slot) {
    if (absl::Status posted = post(slot); !posted.ok()) return posted;
  }
  std::printf("listening on %s\n", group.c_str());
  std::fflush(stdout);
  for (long heard = 0; count == 0 || heard < count; ++heard) {
    const absl::StatusOr<rdmad::Wc> wc = member->id->GetRecvComp();
    if (!wc.ok()) return wc.status();
    if (wc->status != rdmad::WcStatus::kSuccess) return rdmad::WcStatusToStatus(wc->status);
    const char* text = reinterpret_cast<const char*>(member->memory.data() + wc->wr_id * kReceiveBytes);
    const size_t bytes = wc->byte_len - rdmad::kGrhBytes;
    std::printf("QP 0x%06x says: %.*s\n", wc->src_qpn, static_cast<int>(bytes), text + rdmad::kGrhBytes);
    std::fflush(stdout);
    if (absl::Status posted = post(wc->wr_id); !posted.ok()) return posted;
  }
  return absl::OkStatus();
}

absl::Status Say(const rdmad::Client& client, const std::string& local, const std::string& group,
                 const std::string& text) {
  absl::StatusOr<Member> member = Join(client, local, group, rdmad::MulticastJoin::kSendOnly);
  if (!member.ok()) return member.status();
  const rdmad::UdParam to = member->id->event()->ud();  // the join told how the group is reached
  const absl::StatusOr<rdmad::ProtectionDomain> pd = member->id->pd();
  if (!pd.ok()) return pd.status();
  const absl::StatusOr<rdmad::AddressHandle> ah = rdmad::AddressHandle::Create(*pd, to.ah);
  if (!ah.ok()) return ah.status();
  const size_t bytes = std::min(text.size(), kMaxTextBytes);
  std::memcpy(member->memory.data(), text.data(), bytes);
  if (absl::Status sent = member->id->qp().PostUdSend(0, member->memory.data(), bytes, &member->region,
                                                      rdmad::kSendSignaled, *ah, to.qpn, to.qkey);
      !sent.ok()) {
    return sent;
  }
  const absl::StatusOr<rdmad::Wc> wc = member->id->GetSendComp();
  return wc.ok() ? rdmad::WcStatusToStatus(wc->status) : wc.status();
}

}  // namespace

int main(int argc, char** argv) {
  const bool listen = (argc == 4 || argc == 5) && std::strcmp(argv[1], "listen") == 0;
  if (!listen && (argc != 5 || std::strcmp(argv[1], "say") != 0)) {
    std::fprintf(stderr, "usage: group listen ADDRESS GROUP [COUNT]\n       group say ADDRESS GROUP TEXT\n");
    return argc == 2 && std::strcmp(argv[1], "--help") == 0 ? 0 : 2;
  }
  const absl::StatusOr<rdmad::Client> client = rdmad::Client::Attach();
  absl::Status status = client.status();
  if (status.ok()) {
    status = listen ? Listen(*client, argv[2], argv[3], argc == 5 ? std::atol(argv[4]) : 0)
                    : Say(*client, argv[2], argv[3], argv[4]);
  }
  if (!status.ok()) std::fprintf(stderr, "group: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
