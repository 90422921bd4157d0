// The QPs that have something to do, in the order in which they get their turn. Links live in the
// QPs.
//
// Thread: engine. Owner: the transport; a QP takes itself out before it dies.
#pragma once

#include <cstddef>

namespace rdmad::soft {

class TransportQp;

struct ActiveNode {
  explicit ActiveNode(TransportQp* owner) noexcept : qp(owner) {}
  ActiveNode(const ActiveNode&) = delete;
  ActiveNode& operator=(const ActiveNode&) = delete;

  TransportQp* const qp;
  ActiveNode* next = nullptr;
  ActiveNode* previous = nullptr;
  bool listed = false;
};

class ActiveList {
 public:
  // At the end; nothing happens if it is listed.
  void Push(ActiveNode& node) noexcept {
    if (node.listed) return;
    node.listed = true;
    node.previous = last_;
    node.next = nullptr;
    (last_ == nullptr ? first_ : last_->next) = &node;
    last_ = &node;
    ++size_;
  }

  void Remove(ActiveNode& node) noexcept {
    if (!node.listed) return;
    node.listed = false;
    (node.previous == nullptr ? first_ : node.previous->next) = node.next;
    (node.next == nullptr ? last_ : node.next->previous) = node.previous;
    node.next = node.previous = nullptr;
    --size_;
  }

  // The first one, taken out; null if there is none.
  ActiveNode* Pop() noexcept {
    ActiveNode* const node = first_;
    if (node != nullptr) Remove(*node);
    return node;
  }

  bool empty() const noexcept { return first_ == nullptr; }
  size_t size() const noexcept { return size_; }

 private:
  ActiveNode* first_ = nullptr;
  ActiveNode* last_ = nullptr;
  size_t size_ = 0;
};

}  // namespace rdmad::soft
