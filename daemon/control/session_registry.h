// All sessions of the daemon: who they are, by which token their calls come, and how they end.
//
// A session ends once, whatever ends it: its attach socket hangs up, its client wrote nonsense, or
// the daemon stops. Its token is void and its socket closed at once; the entry goes when the
// session has given everything back.
//
// Thread: control. Owner: Daemon.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/control/config.h"
#include "daemon/control/log.h"
#include "daemon/engine/engine_proxy.h"
#include "daemon/session/session.h"
#include "daemon/session/session_host.h"
#include "daemon/session/user_quota.h"

namespace rdmad::control {

inline constexpr size_t kTokenBytes = 32;

// The client's attach socket, as a session uses it.
class SessionLink : public session::DescriptorSender {
 public:
  // Closes the socket: the client learns that its session has ended.
  virtual void HangUp() = 0;
};

struct RegistryLimits {
  DaemonLimits daemon;
  session::SessionLimits session;
  session::SessionLimits user = session::DefaultUserLimits();
};

class SessionRegistry final : public session::SessionHost {
 public:
  // `environment` lacks the host, which is this registry, the user's quota, and the engines: each
  // session gets the one of `engines`, at least one, that serves the fewest, and behind it those
  // that follow, in a ring.
  SessionRegistry(boost::asio::io_context& loop, std::vector<engine::EngineProxy*> engines,
                  const session::SessionEnvironment& environment, const RegistryLimits& limits);
  // Only when count() is 0.
  ~SessionRegistry() override;
  SessionRegistry(const SessionRegistry&) = delete;
  SessionRegistry& operator=(const SessionRegistry&) = delete;

  struct Opened {
    uint64_t session_id = 0;
    std::string token;
    session::AttachGift gift;
  };
  // Makes a session; `identity.id` is filled in here. `done` runs once. Errors: ResourceExhausted
  // (names the limit); Unavailable (the daemon stops); Cancelled (ended meanwhile).
  void Open(std::shared_ptr<SessionLink> link, session::SessionIdentity identity,
            std::function<void(absl::StatusOr<Opened>)> done);

  // Ends the session of that link, if it still has one.
  void End(const SessionLink* link, const std::string& reason);
  // Ends all and opens no more; `all_closed` when the last is gone, possibly at once.
  void EndAll(const std::string& reason, std::function<void()> all_closed);

  // Null: no session has this token (any more).
  [[nodiscard]] session::Session* FindByToken(const std::string& token) const;
  // Those that have not ended, by id.
  void ForEach(const std::function<void(session::Session&)>& visit) const;
  // The same from this id on, until the visit says false.
  void ForEachFrom(uint64_t id, const std::function<bool(session::Session&)>& visit) const;
  // Those that have ended and still give things back are counted, too.
  [[nodiscard]] size_t count() const noexcept { return entries_.size(); }
  [[nodiscard]] size_t CountOf(uid_t uid) const;
  // Users who have sessions, by uid.
  void ForEachUser(
      const std::function<void(const session::UserQuota& quota, size_t sessions)>& visit) const;
  [[nodiscard]] uint64_t opened_total() const noexcept { return last_id_; }
  [[nodiscard]] uint64_t ended_by_fault_total() const noexcept { return ended_by_fault_; }

  // For sessions opened from now on; a user's also for what their sessions ask from now on.
  void SetLimits(const RegistryLimits& limits);

  // Gives free memory back to the host a little later, once for all who ask meanwhile: when what
  // was much of it has been freed.
  void TidyLater();

  // session::SessionHost
  std::unique_ptr<session::FdWatch> WatchWritable(int fd, std::function<void()> ready) override;
  void RunSlowly(std::function<void()> work, std::function<void()> done) override;
  void EndSession(session::Session& session, const std::string& reason) override;

 private:
  struct Entry {
    std::unique_ptr<session::Session> session;
    std::shared_ptr<SessionLink> link;
    std::string token;              // empty until it is open, and after it has ended
    bool had_many_objects = false;  // when it ended
    bool logged = false;            // its beginning, and so its end
  };

  struct User {
    std::unique_ptr<session::UserQuota> quota;
    size_t sessions = 0;
  };
  using Entries = std::map<uint64_t, Entry>;

  [[nodiscard]] std::vector<engine::EngineProxy*> LeastUsedFirst() const;
  // The quota of somebody who has one session more now.
  session::UserQuota* QuotaOf(const session::SessionIdentity& identity);
  void Erase(Entries::iterator entry);
  absl::Status CheckLimits(const session::SessionIdentity& identity) const;
  void EndEntry(Entry& entry, const std::string& reason);
  void OnClosed(uint64_t id);

  boost::asio::io_context& loop_;
  const std::vector<engine::EngineProxy*> engines_;
  session::SessionEnvironment environment_;
  RegistryLimits limits_;
  uint64_t last_id_ = 0;
  uint64_t ended_by_fault_ = 0;
  bool stopping_ = false;
  std::function<void()> all_closed_;
  std::map<uid_t, User> users_;
  Entries entries_;
  std::unordered_map<std::string, session::Session*> by_token_;
  boost::asio::steady_timer tidy_timer_;
  bool to_tidy_ = false;
  LogLimiter log_;  // of sessions that come
  // Last, so that it is joined first.
  boost::asio::thread_pool slow_workers_;
};

}  // namespace rdmad::control
