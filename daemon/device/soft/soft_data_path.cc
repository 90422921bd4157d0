#include "daemon/device/soft/soft_data_path.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "daemon/base/check.h"
#include "daemon/device/soft/mr_table.h"
#include "daemon/device/soft/qpn_allocator.h"
#include "daemon/device/soft/transport_counters.h"
#include "daemon/wire/ids.h"

namespace rdmad::soft {
namespace {

constexpr TimeNs kAskIntervalNs = 1000;  // while nothing arrives
constexpr TimeNs kPathFullRetryNs =
    20'000;                         // a full socket buffer of some megabytes drains no faster
constexpr uint32_t kHotTurns = 16;  // a busy port keeps quiet ones waiting this many turns at most
constexpr int kStraysPerTurn = 128;

}  // namespace

absl::StatusOr<std::unique_ptr<SoftDataPath>> SoftDataPath::Create(MadRing* mads,
                                                                   device::AsyncSink* async,
                                                                   const TransportConfig& config) {
  UniqueFd epoll_fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_fd.valid()) return absl::ErrnoToStatus(errno, "soft_data_path: epoll_create1");
  return std::unique_ptr<SoftDataPath>(new SoftDataPath(std::move(epoll_fd), mads, async, config));
}

SoftDataPath::SoftDataPath(UniqueFd epoll_fd, MadRing* mads, device::AsyncSink* async,
                           const TransportConfig& config)
    : epoll_fd_(std::move(epoll_fd)),
      poll_fds_{epoll_fd_.get()},
      mads_(mads),
      transport_(this, async, config) {
  transport_.SetFirstDataSink(this);
}

SoftDataPath::~SoftDataPath() {
  RD_CHECK(ports_.empty() && groups_.empty(), "every port was deactivated");
}

absl::Status SoftDataPath::JoinEngines(uint32_t engine, std::vector<StrayRing*> rings,
                                       std::shared_ptr<MrKeys> keys) {
  RD_CHECK(own_ring_ == nullptr && engine < rings.size());
  rings_ = std::move(rings);
  own_ring_ = rings_[engine];
  transport_.SetStrayPackets(this);
  transport_.mrs().ShareKeys(std::move(keys), engine);
  if (!Watch(own_ring_->poll_fd(), own_ring_)) {
    return absl::ErrnoToStatus(errno, "soft_data_path: epoll_ctl");
  }
  return absl::OkStatus();
}

void SoftDataPath::AddPort(UdpPort* port) noexcept {
  RD_DCHECK(owner_.IsCurrent());
  ports_.Add(*port);
  any_hot_ = true;
  static_cast<void>(Watch(port->fd(), port));
  transport_.AddLocalAddress(port->local());
}

void SoftDataPath::RemovePort(UdpPort* port) noexcept {
  RD_DCHECK(owner_.IsCurrent());
  transport_.RemoveLocalAddress(port->local());
  Unwatch(port->fd());
  ports_.Remove(*port);
  last_port_ = nullptr;
}

void SoftDataPath::AddMulticastPort(MulticastPort* port) noexcept {
  RD_DCHECK(owner_.IsCurrent());
  groups_.Add(*port);
  any_hot_ = true;
  static_cast<void>(Watch(port->fd(), port));
}

void SoftDataPath::RemoveMulticastPort(MulticastPort* port) noexcept {
  RD_DCHECK(owner_.IsCurrent());
  Unwatch(port->fd());
  groups_.Remove(*port);
}

bool SoftDataPath::Watch(int fd, void* port) noexcept {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = port;
  return ::epoll_ctl(epoll_fd_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void SoftDataPath::Unwatch(int fd) noexcept {
  [[maybe_unused]] const int removed = ::epoll_ctl(epoll_fd_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

int SoftDataPath::DoWork(TimeNs now) noexcept {
  RD_DCHECK(owner_.IsCurrent());
  now_ = now;
  path_full_ = false;
  int work = 0;
  if (any_hot_ || now - last_asked_ >= kAskIntervalNs || now < last_asked_) work += ReceiveAll(now);
  mads_->Flush();
  if (own_ring_ != nullptr) {
    work += own_ring_->TakeUpTo(kStraysPerTurn,
                                [this](const Flow& flow, const wire::PacketView& packet) {
                                  transport_.OnPacket(flow, packet, now_);
                                });
  }
  return work + transport_.DoWork(now);
}

int SoftDataPath::ReceiveAll(TimeNs now) noexcept {
  last_asked_ = now;
  // With one port, asking it costs no more than asking about it.
  if (ports_.has_one() && groups_.empty()) {
    (*ports_.begin()).link().hot = true;
  } else if (!any_hot_ || ++hot_turns_ >= kHotTurns) {
    MarkReadyPorts();
  }
  int work = 0;
  any_hot_ = false;
  for (UdpPort& port : ports_) {
    if (port.link().hot) work += ReceiveFrom(port, *this);
    any_hot_ |= port.link().hot;
  }
  return groups_.empty() ? work : work + ReceiveFromGroups();
}

int SoftDataPath::ReceiveFromGroups() noexcept {
  class GroupRx final : public PacketRx {
   public:
    GroupRx(Transport& transport, MulticastGroup& group, TimeNs now)
        : transport_(transport), group_(group), now_(now) {}
    void OnPacket(const Flow& flow, const wire::PacketView& packet) noexcept override {
      transport_.OnMulticast(group_, flow, packet, now_);
    }
    bool IsOwn(const IpAddress& address) const noexcept override {
      return transport_.IsLocalAddress(address);
    }

   private:
    Transport& transport_;
    MulticastGroup& group_;
    const TimeNs now_;
  };
  int work = 0;
  for (MulticastPort& port : groups_) {
    if (!port.link().hot) continue;
    GroupRx up(transport_, port.group(), now_);
    work += ReceiveFrom(port, up);
    any_hot_ |= port.link().hot;
  }
  return work;
}

template <typename Port>
int SoftDataPath::ReceiveFrom(Port& port, PacketRx& up) noexcept {
  bool more = false;
  const int received = port.Receive(rx_buffers_, up, &more);
  port.link().hot = received > 0 || more;
  return received;
}

void SoftDataPath::MarkReadyPorts() noexcept {
  hot_turns_ = 0;
  if (ports_.empty() && groups_.empty()) return;
  std::array<epoll_event, 16> events;  // the rest stays ready and comes next time
  const int count =
      ::epoll_wait(epoll_fd_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    const void* const ready = events[static_cast<size_t>(i)].data.ptr;
    for (UdpPort& port : ports_) port.link().hot |= &port == ready;
    for (MulticastPort& port : groups_) port.link().hot |= &port == ready;
  }
}

void SoftDataPath::OnPacket(const Flow& flow, const wire::PacketView& packet) noexcept {
  if (packet.dest_qpn == wire::kGsiQpn) return mads_->OnPacket(flow, packet);
  transport_.OnPacket(flow, packet, now_);
}

bool SoftDataPath::OnStray(const Flow& flow, const wire::PacketView& packet) noexcept {
  const uint32_t engine = packet.dest_qpn.value() % QpnAllocator::kEngines;
  if (engine >= rings_.size() || rings_[engine] == own_ring_) return false;
  TransportCounters& counters = transport_.counters();
  Count(rings_[engine]->Push(flow, packet) ? counters.rx_handed_on : counters.drop_hand_on_full);
  return true;
}

size_t SoftDataPath::Send(const Flow& flow, std::span<const TxPacket> packets) noexcept {
  UdpPort* port = FindPort(flow.local);
  // The address went away under the QP: lost, like anything sent on a dead link.
  if (port == nullptr) return packets.size();
  const size_t taken = port->Send(flow, packets);
  path_full_ |= taken < packets.size();
  return taken;
}

UdpPort* SoftDataPath::FindPort(const IpAddress& local) noexcept {
  if (last_port_ != nullptr && last_port_->local() == local) return last_port_;
  for (UdpPort& port : ports_) {
    if (port.local() == local) return last_port_ = &port;
  }
  return nullptr;
}

TimeNs SoftDataPath::NextDeadline(TimeNs now) noexcept {
  const TimeNs deadline = transport_.NextDeadline(now);
  if (any_hot_) return now;
  if (own_ring_ != nullptr && !own_ring_->PrepareSleep()) return now;
  // What is left over waits for the socket; trying at once would only spin.
  if (path_full_ && deadline <= now) return now + kPathFullRetryNs;
  return deadline;
}

}  // namespace rdmad::soft
