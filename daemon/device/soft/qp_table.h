// From a QP number to the QP: one array over all 24-bit numbers, so that a packet finds its QP with
// one load.
//
// The array is 128 MiB of address space; only the pages behind numbers that were ever used become
// memory. Numbers of one engine lie side by side: since they go round (qpn_allocator.h), each new
// connection touches 8 bytes more, and one engine's never more than 8 MiB. Numbers may be chosen at
// will; close together is kinder to the cache. Thread: engine, but for construction. Owner: the
// transport.
#pragma once

#include <cstddef>
#include <cstdint>

#include "daemon/device/soft/qpn_allocator.h"
#include "daemon/device/soft/transport_qp.h"

namespace rdmad::soft {

class QpTable {
 public:
  static constexpr uint32_t kQpnCount = 1u << 24;

  QpTable();
  ~QpTable();
  QpTable(const QpTable&) = delete;
  QpTable& operator=(const QpTable&) = delete;

  // Null if there is none, or `qpn` is no 24-bit number.
  [[nodiscard]] TransportQp* Find(uint32_t qpn) const noexcept {
    return qpn < kQpnCount ? slots_[IndexOf(qpn)] : nullptr;
  }
  // The same for QPs of one kind.
  [[nodiscard]] SoftQp* FindConnected(uint32_t qpn) const noexcept {
    const TransportQp* const qp = Find(qpn);
    return qp != nullptr ? qp->connected() : nullptr;
  }
  [[nodiscard]] UdQp* FindDatagram(uint32_t qpn) const noexcept {
    const TransportQp* const qp = Find(qpn);
    return qp != nullptr ? qp->datagram() : nullptr;
  }
  // The number must be free.
  void Insert(uint32_t qpn, TransportQp* qp) noexcept;
  void Remove(uint32_t qpn) noexcept;
  uint32_t size() const noexcept { return size_; }

 private:
  static constexpr uint32_t IndexOf(uint32_t qpn) noexcept {
    return qpn % QpnAllocator::kEngines * QpnAllocator::kNumbersPerEngine +
           qpn / QpnAllocator::kEngines;
  }

  TransportQp** slots_;
  uint32_t size_ = 0;
};

}  // namespace rdmad::soft
