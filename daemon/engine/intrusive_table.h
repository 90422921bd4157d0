// A hash table whose members carry their own link and key: entering and leaving never allocate.
//
// The number of buckets is fixed: made for the tens of thousands of members that an engine has, and
// for lookups outside of the data path. Thread: one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "daemon/base/check.h"

namespace rdmad::engine {

template <typename T, typename Tag>
class IntrusiveTable;

template <typename T, typename Tag>
class TableHook {
 private:
  friend class IntrusiveTable<T, Tag>;
  uint64_t key_ = 0;
  T* next_ = nullptr;
};

// T derives from TableHook<T, Tag>. Keys may repeat; Find() then returns any of them.
template <typename T, typename Tag>
class IntrusiveTable {
 public:
  IntrusiveTable() : buckets_(kBuckets, nullptr) {}

  void Insert(T& member, uint64_t key) noexcept {
    Hook& hook = member;
    hook.key_ = key;
    T*& bucket = Bucket(key);
    hook.next_ = bucket;
    bucket = &member;
  }

  // `member` was inserted.
  void Remove(T& member) noexcept {
    Hook& hook = member;
    T** link = &Bucket(hook.key_);
    while (*link != &member) {
      RD_CHECK(*link != nullptr, "a member of the table");
      link = &static_cast<Hook&>(**link).next_;
    }
    *link = hook.next_;
    hook.next_ = nullptr;
  }

  T* Find(uint64_t key) noexcept {
    T* member = Bucket(key);
    while (member != nullptr && static_cast<Hook*>(member)->key_ != key) {
      member = static_cast<Hook*>(member)->next_;
    }
    return member;
  }

 private:
  using Hook = TableHook<T, Tag>;
  static constexpr unsigned kBucketBits = 12;
  static constexpr size_t kBuckets = size_t{1} << kBucketBits;

  T*& Bucket(uint64_t key) noexcept {
    // Fibonacci hashing: pointers and counters alike spread over the high bits.
    return buckets_[(key * 0x9e3779b97f4a7c15u) >> (64 - kBucketBits)];
  }

  std::vector<T*> buckets_;
};

}  // namespace rdmad::engine
