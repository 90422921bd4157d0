#include "daemon/device/soft/qp_table.h"

#include <sys/mman.h>

#include "daemon/base/check.h"

namespace rdmad::soft {

QpTable::QpTable()
    // Reads of numbers that nobody uses (a hostile sender tries them all) map the one page of zeros
    // and cost no memory.
    : slots_(
          static_cast<TransportQp**>(mmap(nullptr, kQpnCount * sizeof(TransportQp*),
                                          PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
  RD_CHECK(slots_ != MAP_FAILED, "128 MiB of address space");
  // Huge pages would turn one number into 2 MiB. Where there are none this fails, which is as well.
  (void)madvise(slots_, kQpnCount * sizeof(TransportQp*), MADV_NOHUGEPAGE);
}

QpTable::~QpTable() {
  RD_CHECK(size_ == 0, "QPs leave before their transport");
  munmap(slots_, kQpnCount * sizeof(TransportQp*));
}

void QpTable::Insert(uint32_t qpn, TransportQp* qp) noexcept {
  RD_CHECK(qpn < kQpnCount && slots_[IndexOf(qpn)] == nullptr, "the device hands out free numbers");
  slots_[IndexOf(qpn)] = qp;
  ++size_;
}

void QpTable::Remove(uint32_t qpn) noexcept {
  RD_CHECK(qpn < kQpnCount && slots_[IndexOf(qpn)] != nullptr);
  slots_[IndexOf(qpn)] = nullptr;
  --size_;
}

}  // namespace rdmad::soft
