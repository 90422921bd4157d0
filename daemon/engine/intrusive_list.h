// A doubly linked list whose links are part of its members: joining and leaving cost a few stores,
// never an allocation, and a member can leave without knowing its list.
//
// A type that stands in lists derives from one ListHook<Tag> per list. Thread: one.
#pragma once

#include "daemon/base/check.h"

namespace rdmad::engine {

template <typename Tag>
class ListHook {
 public:
  ListHook() = default;
  ListHook(const ListHook&) = delete;
  ListHook& operator=(const ListHook&) = delete;
  ~ListHook() { RD_DCHECK(!linked(), "a member leaves its list before it goes"); }

  bool linked() const noexcept { return next_ != nullptr; }
  void Unlink() noexcept {
    if (!linked()) return;
    previous_->next_ = next_;
    next_->previous_ = previous_;
    previous_ = next_ = nullptr;
  }

 private:
  template <typename T, typename U>
  friend class IntrusiveList;

  ListHook* previous_ = nullptr;
  ListHook* next_ = nullptr;
};

template <typename T, typename Tag>
class IntrusiveList {
 public:
  IntrusiveList() { end_.previous_ = end_.next_ = &end_; }
  ~IntrusiveList() {
    while (PopFront() != nullptr) {
    }
    end_.previous_ = end_.next_ = nullptr;
  }
  IntrusiveList(const IntrusiveList&) = delete;
  IntrusiveList& operator=(const IntrusiveList&) = delete;

  bool empty() const noexcept { return end_.next_ == &end_; }
  T* front() const noexcept { return empty() ? nullptr : static_cast<T*>(end_.next_); }

  // `member` stands in no list of this tag.
  void PushBack(T& member) noexcept {
    ListHook<Tag>& hook = member;
    RD_DCHECK(!hook.linked());
    hook.previous_ = end_.previous_;
    hook.next_ = &end_;
    end_.previous_->next_ = &hook;
    end_.previous_ = &hook;
  }

  T* PopFront() noexcept {
    T* const first = front();
    if (first != nullptr) static_cast<ListHook<Tag>*>(first)->Unlink();
    return first;
  }

  // Puts all members of `other` in front of this list's, in their order.
  void TakeToFront(IntrusiveList& other) noexcept {
    if (other.empty()) return;
    ListHook<Tag>* const first = other.end_.next_;
    ListHook<Tag>* const last = other.end_.previous_;
    other.end_.previous_ = other.end_.next_ = &other.end_;
    last->next_ = end_.next_;
    end_.next_->previous_ = last;
    end_.next_ = first;
    first->previous_ = &end_;
  }

  // Calls `visit(T&)` for each member until it returns true; returns that member or null. `visit`
  // may unlink the member that it was given.
  template <typename Visit>
  T* FindIf(Visit visit) const noexcept {
    for (ListHook<Tag>* hook = end_.next_; hook != &end_;) {
      ListHook<Tag>* const next = hook->next_;
      T* const member = static_cast<T*>(hook);
      if (visit(*member)) return member;
      hook = next;
    }
    return nullptr;
  }

  template <typename Visit>
  void ForEach(Visit visit) const noexcept {
    FindIf([&visit](T& member) {
      visit(member);
      return false;
    });
  }

 private:
  mutable ListHook<Tag> end_;
};

}  // namespace rdmad::engine
