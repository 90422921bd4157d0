// What a hostile client could leave in the rings of a QP: read as the engine reads it, and posted
// to a QP whose peer lives on the same transport, so that everything is executed at once.
#include <new>

#include "daemon/engine/work_queue_reader.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/live_qp.h"
#include "tests/fuzz/targets.h"

namespace rdmad::fuzz {
namespace {

constexpr uint32_t kSlots = 16;

class Ring {
 public:
  Ring()
      : bytes_(shm::WorkQueueBytes(kSlots)),
        memory_(static_cast<std::byte*>(::operator new[](bytes_, std::align_val_t{128}))) {
    std::memset(memory_, 0, bytes_);
  }
  ~Ring() { ::operator delete[](memory_, std::align_val_t{128}); }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  std::byte* memory() const { return memory_; }
  // The next slots are what the input says, and so is how far the tail goes.
  void Write(Input& input, const LiveQp& own, const LiveQp& peer) {
    auto* const header = reinterpret_cast<shm::WorkQueueHeader*>(memory_);
    const auto how = input.Take<uint8_t>();
    uint32_t tail = header->tail.load(std::memory_order_relaxed);
    const uint32_t count = 1 + how % 4;
    for (uint32_t i = 0; i < count; ++i) {
      shm::WorkSlot slot{};
      const auto from = input.TakeBytes(sizeof(slot));
      std::memcpy(static_cast<void*>(&slot), from.data(), from.size());
      if ((how & 16) != 0) {  // keys and addresses that hold
        slot.rkey = peer.mr->rkey();
        slot.remote_addr = LiveQp::kIova + slot.remote_addr % LiveQp::kBytes;
        for (shm::WorkSge& sge : slot.sges) {
          sge.lkey = own.mr->lkey();
          sge.addr = LiveQp::kIova + sge.addr % LiveQp::kBytes;
          sge.length_bytes %= LiveQp::kBytes;
        }
      }
      if ((how & 32) != 0) slot.extra_slots = 0;
      if ((how & 64) != 0) slot.num_sge %= 5;
      std::memcpy(memory_ + sizeof(shm::WorkQueueHeader) + (tail + i) % kSlots * sizeof(slot),
                  static_cast<const void*>(&slot), sizeof(slot));
    }
    tail += (how & 128) != 0 ? input.Take<uint32_t>() : count;
    header->tail.store(tail, std::memory_order_release);
  }

 private:
  const size_t bytes_;
  std::byte* const memory_;
};

}  // namespace

void FuzzWorkQueue(std::span<const uint8_t> bytes) {
  Input input(bytes);
  const IpAddress address = IpAddress::FromV4(10, 0, 0, 1);
  // Made once: its tables are large, and empty again after each input.
  static Discard sink;
  static soft::Transport transport(&sink, &sink);
  Ring sends;  // inline data stays in the ring, so that outlives the QP
  Ring receives;
  transport.AddLocalAddress(address);
  LiveQp a(transport, sink, address, 0x11);
  LiveQp b(transport, sink, address, 0x12);
  engine::WorkQueueReader send_reader(sends.memory(), kSlots);
  engine::WorkQueueReader recv_reader(receives.memory(), kSlots);
  engine::WrScratch scratch;
  soft::TimeNs now = 1'000'000'000;
  while (!input.empty()) {
    const auto what = input.Take<uint8_t>();
    if (a.qp->Query().state != QpState::kRts || b.qp->Query().state != QpState::kRts) {
      a.ToRts(address, 0x12, now);
      b.ToRts(address, 0x11, now);
      send_reader.Forget();
      recv_reader.Forget();
    }
    Ring& ring = (what & 1) != 0 ? receives : sends;
    ring.Write(input, (what & 1) != 0 ? b : a, (what & 1) != 0 ? a : b);
    device::SendWr send{};
    if (send_reader.Refresh()) {
      while (send_reader.NextSend(scratch, send) == engine::ReadResult::kOk) {
        (void)a.qp->PostSend(send, now);
      }
      send_reader.PublishHead();
    }
    device::RecvWr receive{};
    if (recv_reader.Refresh()) {
      while (recv_reader.NextRecv(scratch, receive) == engine::ReadResult::kOk) {
        (void)b.qp->PostRecv(receive, now);
      }
      recv_reader.PublishHead();
    }
    now += what * 1000;
    transport.DoWork(now);
  }
  for (int turn = 0; turn < 1000 && transport.DoWork(now) > 0; ++turn) {
  }
}

}  // namespace rdmad::fuzz
