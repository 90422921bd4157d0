// Deadlines of any number of QPs: a pairing heap whose nodes live inside the QPs, so that nothing
// is allocated and a QP without a deadline costs nothing. Arming is O(1), taking out is O(log n)
// amortized, the next deadline is at hand.
//
// Thread: engine. Owner: the transport; each node belongs to its QP, which cancels it before it
// dies.
#pragma once

#include <cstddef>

#include "daemon/device/types.h"

namespace rdmad::soft {

using device::kNever;
using device::TimeNs;

class TransportQp;

// One deadline. Does not move while armed.
struct Timer {
  explicit Timer(TransportQp* owner) noexcept : qp(owner) {}
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  TransportQp* const qp;
  TimeNs deadline = kNever;  // kNever: not armed

  // The heap's.
  Timer* child = nullptr;     // first of those that come no earlier
  Timer* next = nullptr;      // next sibling
  Timer* previous = nullptr;  // previous sibling, or the parent of a first child; null at the root
};

class TimerQueue {
 public:
  // Sets or moves the deadline; kNever cancels.
  void Arm(Timer& timer, TimeNs deadline) noexcept;
  void Cancel(Timer& timer) noexcept;
  // The earliest deadline, or kNever.
  [[nodiscard]] TimeNs Next() const noexcept { return root_ == nullptr ? kNever : root_->deadline; }
  // Takes out the earliest timer if it is due, else null. Timers of one deadline come in no
  // particular order.
  [[nodiscard]] Timer* PopDue(TimeNs now) noexcept;
  [[nodiscard]] size_t size() const noexcept { return size_; }

 private:
  static Timer* Merge(Timer* a, Timer* b) noexcept;
  static Timer* MergeSiblings(Timer* first) noexcept;

  Timer* root_ = nullptr;
  size_t size_ = 0;
};

}  // namespace rdmad::soft
