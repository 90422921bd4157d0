// Who uses an object: what makes "destroy" of a CQ in use fail, as in verbs, and name the user.
//
// Thread: control. A UseRef must not outlive its UserList: used objects outlive their users.
#pragma once

#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/session/handle_table.h"

namespace rdmad::session {

class UserList {
 public:
  UserList() = default;
  UserList(const UserList&) = delete;
  UserList& operator=(const UserList&) = delete;
  ~UserList() { RD_CHECK(users_.empty(), "an object goes before its users"); }

  [[nodiscard]] bool empty() const noexcept { return users_.empty(); }
  [[nodiscard]] size_t count() const noexcept { return users_.size(); }
  [[nodiscard]] const std::multiset<Handle>& handles() const noexcept { return users_; }

  // "qp 0x600000001 and 3 more". Not to be called without users.
  [[nodiscard]] std::string Text() const {
    const Handle first = *users_.begin();
    std::string text = HandleText(static_cast<HandleKind>(HandleKindOf(first)), first);
    if (users_.size() > 1) absl::StrAppend(&text, " and ", users_.size() - 1, " more");
    return text;
  }

 private:
  friend class UseRef;
  std::multiset<Handle> users_;  // a QP may use one CQ for both of its queues
};

// One entry in a UserList, for as long as it lives. Move-only.
class UseRef {
 public:
  UseRef() = default;
  UseRef(UserList& list, Handle user) : list_(&list), user_(user) { list_->users_.insert(user_); }
  UseRef(UseRef&& other) noexcept
      : list_(std::exchange(other.list_, nullptr)), user_(other.user_) {}
  UseRef& operator=(UseRef&& other) noexcept {
    if (this != &other) {
      Release();
      list_ = std::exchange(other.list_, nullptr);
      user_ = other.user_;
    }
    return *this;
  }
  UseRef(const UseRef&) = delete;
  UseRef& operator=(const UseRef&) = delete;
  ~UseRef() { Release(); }

  [[nodiscard]] bool held() const noexcept { return list_ != nullptr; }

 private:
  void Release() noexcept {
    if (list_ == nullptr) return;
    list_->users_.erase(list_->users_.find(user_));
    list_ = nullptr;
  }

  UserList* list_ = nullptr;
  Handle user_ = kNoHandle;
};

}  // namespace rdmad::session
