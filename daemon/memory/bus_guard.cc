#include "daemon/memory/bus_guard.h"

#include <signal.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <utility>

namespace rdmad::memory {
namespace {

// The handler may run at any instruction of any thread, so the table is plain static atomics.
// A slot is free when `begin` is 0, being filled or cleared when it is kBusy.
struct Slot {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
  std::atomic<uintptr_t> page_bytes{0};
};
static_assert(std::atomic<uintptr_t>::is_always_lock_free);

constexpr int kSlotCount = 16384;
constexpr uintptr_t kBusy = 1;
Slot g_slots[kSlotCount];
std::atomic<int> g_used_slots{0};  // slots at and above were never used
std::atomic<uint64_t> g_replaced_pages{0};

// Puts zeros at the page of `addr` if it is guarded.
bool Replace(uintptr_t addr) noexcept {
  const int used = g_used_slots.load(std::memory_order_acquire);
  for (int i = 0; i < used; ++i) {
    const Slot& slot = g_slots[i];
    // Pairs with the release in the constructor. The faulting thread uses the range, so its slot
    // does not change meanwhile.
    const uintptr_t begin = slot.begin.load(std::memory_order_acquire);
    if (begin <= kBusy || addr < begin || addr >= slot.end.load(std::memory_order_relaxed))
      continue;
    const uintptr_t page_bytes = slot.page_bytes.load(std::memory_order_relaxed);
    void* const page = reinterpret_cast<void*>(addr & ~(page_bytes - 1));
    if (::mmap(page, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
               -1, 0) == MAP_FAILED) {
      return false;
    }
    g_replaced_pages.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  return false;
}

void OnSigbus(int signal_number, siginfo_t* info, void*) {
  const int saved_errno = errno;
  if (info->si_code != BUS_ADRERR || !Replace(reinterpret_cast<uintptr_t>(info->si_addr))) {
    // Returning runs the instruction again, this time with the default action.
    ::signal(signal_number, SIG_DFL);
  }
  errno = saved_errno;
}

}  // namespace

bool InstallBusGuard() {
  struct sigaction action {};
  action.sa_sigaction = &OnSigbus;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  return ::sigaction(SIGBUS, &action, nullptr) == 0;
}

uint64_t BusGuardReplacedPages() noexcept {
  return g_replaced_pages.load(std::memory_order_relaxed);
}

BusGuardedRange::BusGuardedRange(void* addr, uint64_t size_bytes, uint64_t page_bytes) noexcept {
  for (int i = 0; i < kSlotCount; ++i) {
    uintptr_t expected = 0;
    if (!g_slots[i].begin.compare_exchange_strong(expected, kBusy, std::memory_order_acq_rel)) {
      continue;
    }
    int used = g_used_slots.load(std::memory_order_relaxed);
    while (used <= i &&
           !g_used_slots.compare_exchange_weak(used, i + 1, std::memory_order_acq_rel)) {
    }
    const uintptr_t begin = reinterpret_cast<uintptr_t>(addr);
    g_slots[i].end.store(begin + size_bytes, std::memory_order_relaxed);
    g_slots[i].page_bytes.store(page_bytes, std::memory_order_relaxed);
    g_slots[i].begin.store(begin, std::memory_order_release);
    index_ = i;
    return;
  }
}

BusGuardedRange::BusGuardedRange(BusGuardedRange&& other) noexcept
    : index_(std::exchange(other.index_, -1)) {}

BusGuardedRange& BusGuardedRange::operator=(BusGuardedRange&& other) noexcept {
  BusGuardedRange taken(std::move(other));
  std::swap(index_, taken.index_);
  return *this;
}

void BusGuardedRange::Reset() noexcept {
  if (index_ < 0) return;
  g_slots[index_].begin.store(0, std::memory_order_release);
  index_ = -1;
}

}  // namespace rdmad::memory
