#include "daemon/device/soft/timer_queue.h"

#include <utility>

namespace rdmad::soft {

void TimerQueue::Arm(Timer& timer, TimeNs deadline) noexcept {
  if (timer.deadline == deadline) return;
  Cancel(timer);
  if (deadline == kNever) return;
  timer.deadline = deadline;
  root_ = Merge(root_, &timer);
  ++size_;
}

void TimerQueue::Cancel(Timer& timer) noexcept {
  if (timer.deadline == kNever) return;
  Timer* const children = MergeSiblings(timer.child);
  if (&timer == root_) {
    root_ = children;
  } else {
    if (timer.previous->child == &timer) {
      timer.previous->child = timer.next;
    } else {
      timer.previous->next = timer.next;
    }
    if (timer.next != nullptr) timer.next->previous = timer.previous;
    root_ = Merge(root_, children);
  }
  timer.child = timer.next = timer.previous = nullptr;
  timer.deadline = kNever;
  --size_;
}

Timer* TimerQueue::PopDue(TimeNs now) noexcept {
  Timer* const first = root_;
  if (first == nullptr || first->deadline > now) return nullptr;
  Cancel(*first);
  return first;
}

// Both are roots: without siblings and parent.
Timer* TimerQueue::Merge(Timer* a, Timer* b) noexcept {
  if (a == nullptr) return b;
  if (b == nullptr) return a;
  if (b->deadline < a->deadline) std::swap(a, b);
  b->previous = a;
  b->next = a->child;
  if (b->next != nullptr) b->next->previous = b;
  a->child = b;
  return a;
}

// Makes one tree of a list of siblings, in the two passes that give the heap its bounds: neighbours
// pair up from left to right, then the pairs join from right to left.
Timer* TimerQueue::MergeSiblings(Timer* first) noexcept {
  Timer* pairs = nullptr;  // last pair first, linked by `next`
  while (first != nullptr) {
    Timer* const a = first;
    Timer* const b = a->next;
    first = b == nullptr ? nullptr : b->next;
    a->next = a->previous = nullptr;
    if (b != nullptr) b->next = b->previous = nullptr;
    Timer* const pair = Merge(a, b);
    pair->next = pairs;
    pairs = pair;
  }
  Timer* root = nullptr;
  while (pairs != nullptr) {
    Timer* const pair = std::exchange(pairs, pairs->next);
    pair->next = nullptr;
    root = Merge(root, pair);
  }
  return root;
}

}  // namespace rdmad::soft
