#pragma once

#include <atomic>
#include <thread>

namespace rdmad {

// Remembers which thread owns an object, for RD_DCHECK(owner_.IsCurrent()) at the top of owning
// methods.
//
// The owner is the thread that first asks, not the one that constructs: objects are built during
// start-up by one thread and used by another. Detach() lets go of the thread when an object is
// handed over (the hand-over itself must be ordered, by a ring or a join); the next thread that
// asks becomes the owner. Thread: any. Costs one relaxed load once bound.
class ThreadOwner {
 public:
  ThreadOwner() = default;
  // The object that holds this one does not move while somebody else looks.
  ThreadOwner(const ThreadOwner&) = delete;
  ThreadOwner& operator=(const ThreadOwner&) = delete;

  // True for the owner; binds to the calling thread when there is none.
  bool IsCurrent() const noexcept {
    const std::thread::id current = std::this_thread::get_id();
    std::thread::id owner = owner_.load(std::memory_order_relaxed);
    if (owner == current) return true;
    if (owner != std::thread::id()) return false;
    // Relaxed: only the id itself is compared, no data is published through it.
    return owner_.compare_exchange_strong(owner, current, std::memory_order_relaxed) ||
           owner == current;
  }

  // Binds to the calling thread, whoever was the owner.
  void Attach() noexcept { owner_.store(std::this_thread::get_id(), std::memory_order_relaxed); }

  // Forgets the owner.
  void Detach() noexcept { owner_.store(std::thread::id(), std::memory_order_relaxed); }

 private:
  mutable std::atomic<std::thread::id> owner_{std::thread::id()};
};

}  // namespace rdmad
