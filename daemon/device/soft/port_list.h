// The ports of one kind that a data path serves, in the order in which they came. The links lie in
// the ports, so that an engine takes a port in and lets go of it without allocating.
//
// Thread: engine. Owner: the data path; each port belongs to whoever made it and leaves the list
// before it dies.
#pragma once

namespace rdmad::soft {

// What a port has of the list that it is in.
template <typename Port>
struct PortLink {
  Port* next = nullptr;
  bool hot = false;  // yielded something when last asked
};

// `Port::link()` is its PortLink<Port>.
template <typename Port>
class PortList {
 public:
  class Iterator {
   public:
    explicit Iterator(Port* port) noexcept : port_(port) {}
    Port& operator*() const noexcept { return *port_; }
    Iterator& operator++() noexcept {
      port_ = port_->link().next;
      return *this;
    }
    bool operator==(const Iterator& other) const noexcept = default;

   private:
    Port* port_;
  };

  Iterator begin() const noexcept { return Iterator(first_); }
  Iterator end() const noexcept { return Iterator(nullptr); }
  bool empty() const noexcept { return first_ == nullptr; }
  bool has_one() const noexcept { return first_ != nullptr && first_->link().next == nullptr; }

  // To the end. It is hot: nobody has asked it yet.
  void Add(Port& port) noexcept {
    port.link() = {.next = nullptr, .hot = true};
    Port** last = &first_;
    while (*last != nullptr) last = &(*last)->link().next;
    *last = &port;
  }
  // Does nothing if it is not in the list.
  void Remove(Port& port) noexcept {
    for (Port** at = &first_; *at != nullptr; at = &(*at)->link().next) {
      if (*at != &port) continue;
      *at = port.link().next;
      port.link() = {};
      return;
    }
  }

 private:
  Port* first_ = nullptr;
};

}  // namespace rdmad::soft
