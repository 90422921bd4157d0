#include "daemon/control/session_registry.h"

#include <malloc.h>
#include <sys/random.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/control/clock.h"
#include "daemon/control/fd_watch.h"

namespace rdmad::control {
namespace {

constexpr size_t kSlowWorkers = 2;
// A session with this many QPs and CM ids, some 10 KB each, is worth tidying up after.
constexpr uint32_t kManyObjects = 2000;
// Of the lines about sessions that come and go: who attaches in a loop must not fill the log.
constexpr uint32_t kLoggedAtOnce = 200;
constexpr int64_t kLogIntervalNs = 200'000'000;
// By then its connections have left the time-wait state.
constexpr std::chrono::seconds kTidyAfter{10};

std::string NewToken() {
  std::string token(kTokenBytes, '\0');
  size_t filled = 0;
  while (filled < token.size()) {
    const ssize_t got = getrandom(token.data() + filled, token.size() - filled, 0);
    RD_CHECK(got > 0 || errno == EINTR, "the kernel has random bytes");
    if (got > 0) filled += static_cast<size_t>(got);
  }
  return token;
}

}  // namespace

SessionRegistry::SessionRegistry(boost::asio::io_context& loop,
                                 std::vector<engine::EngineProxy*> engines,
                                 const session::SessionEnvironment& environment,
                                 const RegistryLimits& limits)
    : loop_(loop),
      engines_(std::move(engines)),
      environment_(environment),
      limits_(limits),
      tidy_timer_(loop),
      log_(kLoggedAtOnce, kLogIntervalNs),
      slow_workers_(kSlowWorkers) {
  RD_CHECK(!engines_.empty());
  environment_.host = this;
}

SessionRegistry::~SessionRegistry() {
  RD_CHECK(entries_.empty(), "sessions end before their registry");
  slow_workers_.join();
}

// Those that end still count: they have work there until they are gone.
std::vector<engine::EngineProxy*> SessionRegistry::LeastUsedFirst() const {
  std::vector<size_t> sessions(engines_.size());
  for (const auto& [id, entry] : entries_) {
    for (const uint32_t index : entry.session->engine_indices()) ++sessions[index];
  }
  const auto least = std::min_element(sessions.begin(), sessions.end()) - sessions.begin();
  std::vector<engine::EngineProxy*> engines = engines_;
  std::rotate(engines.begin(), engines.begin() + least, engines.end());
  return engines;
}

size_t SessionRegistry::CountOf(uid_t uid) const {
  const auto user = users_.find(uid);
  return user == users_.end() ? 0 : user->second.sessions;
}

void SessionRegistry::ForEachUser(
    const std::function<void(const session::UserQuota& quota, size_t sessions)>& visit) const {
  for (const auto& [uid, user] : users_) visit(*user.quota, user.sessions);
}

session::UserQuota* SessionRegistry::QuotaOf(const session::SessionIdentity& identity) {
  User& user = users_[identity.uid];
  ++user.sessions;
  if (user.quota == nullptr) {
    user.quota = std::make_unique<session::UserQuota>(
        identity.uid, identity.privileged ? std::nullopt : std::make_optional(limits_.user));
  }
  return user.quota.get();
}

void SessionRegistry::Erase(Entries::iterator entry) {
  const auto user = users_.find(entry->second.session->identity().uid);
  entries_.erase(entry);
  if (--user->second.sessions == 0) users_.erase(user);
}

absl::Status SessionRegistry::CheckLimits(const session::SessionIdentity& identity) const {
  if (stopping_) return absl::UnavailableError("rdmad is stopping");
  if (entries_.size() >= limits_.daemon.max_sessions) {
    return absl::ResourceExhaustedError(
        absl::StrCat("attach: limit=max_sessions value=", limits_.daemon.max_sessions,
                     " in_use=", entries_.size(), "; raise it in rdmad.toml"));
  }
  const size_t of_user = CountOf(identity.uid);
  if (of_user >= limits_.daemon.max_sessions_per_user) {
    return absl::ResourceExhaustedError(
        absl::StrCat("attach: limit=max_sessions_per_user value=", limits_.daemon.max_sessions_per_user,
                     " in_use=", of_user, " uid=", identity.uid, "; raise it in rdmad.toml"));
  }
  return absl::OkStatus();
}

void SessionRegistry::Open(std::shared_ptr<SessionLink> link, session::SessionIdentity identity,
                           std::function<void(absl::StatusOr<Opened>)> done) {
  if (absl::Status within = CheckLimits(identity); !within.ok()) return done(within);
  const uint64_t id = ++last_id_;
  identity.id = id;
  session::SessionEnvironment environment = environment_;
  environment.engines = LeastUsedFirst();
  environment.user_quota = QuotaOf(identity);
  auto made = std::make_unique<session::Session>(environment, std::move(identity), limits_.session,
                                                 link.get());
  session::Session* session = made.get();
  Entry& entry = entries_[id];
  entry.session = std::move(made);
  entry.link = std::move(link);

  auto opened = std::make_shared<Opened>();
  absl::StatusOr<session::AttachGift> gift =
      session->Open([this, id, opened, done](absl::Status status) {
        if (!status.ok()) return done(status);
        Entry& ready = entries_.at(id);
        ready.token = NewToken();
        by_token_[ready.token] = ready.session.get();
        opened->session_id = id;
        opened->token = ready.token;
        const session::SessionIdentity& who = ready.session->identity();
        ready.logged = log_.Allow(MonotonicNs());
        if (ready.logged) {
          Log("session").info("opened session={} pid={} uid={} name=\"{}\" engine={} not_logged={}",
                              id, who.pid, who.uid, Printable(who.name),
                              ready.session->engine_index(), log_.suppressed());
        }
        done(std::move(*opened));
      });
  if (!gift.ok()) {
    Erase(entries_.find(id));
    return done(gift.status());
  }
  // The engine answers by way of the loop, so `done` has not run yet.
  opened->gift = std::move(*gift);
}

void SessionRegistry::End(const SessionLink* link, const std::string& reason) {
  for (auto& [id, entry] : entries_) {
    if (entry.link.get() == link) return EndEntry(entry, reason);
  }
}

void SessionRegistry::EndEntry(Entry& entry, const std::string& reason) {
  session::Session& session = *entry.session;
  if (session.closing()) return;
  const session::SessionIdentity& who = session.identity();
  const v1::ObjectCounts counts = session.Counts();
  Log("session").log(
      entry.logged ? spdlog::level::info : spdlog::level::debug,
      "ending session={} pid={} uid={} name=\"{}\" reason=\"{}\" cm_ids={} qps={} cqs={} "
      "regions={} pools={}",
      who.id, who.pid, who.uid, Printable(who.name), reason, counts.cm_ids(), counts.qps(),
      counts.cqs(), counts.regions(), counts.pools());
  entry.had_many_objects = counts.cm_ids() + counts.qps() >= kManyObjects;
  by_token_.erase(entry.token);
  entry.token.clear();
  entry.link->HangUp();
  // Later, because it destroys the session.
  session.Close([this, id = who.id] { boost::asio::post(loop_, [this, id] { OnClosed(id); }); });
}

void SessionRegistry::OnClosed(uint64_t id) {
  const auto closed = entries_.find(id);
  const bool had_many_objects = closed->second.had_many_objects;
  Erase(closed);
  Log("session").debug("closed session={} left={}", id, entries_.size());
  if (had_many_objects) TidyLater();
  if (stopping_ && entries_.empty() && all_closed_) std::exchange(all_closed_, nullptr)();
}

// malloc keeps what is free below anything that is not; the host may have better use for it.
void SessionRegistry::TidyLater() {
  if (stopping_ || std::exchange(to_tidy_, true)) return;
  tidy_timer_.expires_after(kTidyAfter);
  tidy_timer_.async_wait([this](const boost::system::error_code& error) {
    to_tidy_ = false;
    if (!error) RunSlowly([] { malloc_trim(0); }, [] {});
  });
}

void SessionRegistry::EndAll(const std::string& reason, std::function<void()> all_closed) {
  stopping_ = true;
  tidy_timer_.cancel();
  if (entries_.empty()) return all_closed();
  all_closed_ = std::move(all_closed);
  for (auto& [id, entry] : entries_) EndEntry(entry, reason);
}

session::Session* SessionRegistry::FindByToken(const std::string& token) const {
  // A token has 256 random bits, so there is nothing to be gained from timing a look-up.
  auto found = by_token_.find(token);
  return found == by_token_.end() ? nullptr : found->second;
}

void SessionRegistry::ForEach(const std::function<void(session::Session&)>& visit) const {
  for (const auto& [id, entry] : entries_) {
    if (!entry.session->closing()) visit(*entry.session);
  }
}

void SessionRegistry::ForEachFrom(uint64_t id,
                                  const std::function<bool(session::Session&)>& visit) const {
  for (auto entry = entries_.lower_bound(id); entry != entries_.end(); ++entry) {
    session::Session& session = *entry->second.session;
    if (!session.closing() && !visit(session)) return;
  }
}

void SessionRegistry::SetLimits(const RegistryLimits& limits) {
  limits_ = limits;
  for (auto& [uid, user] : users_) {
    if (user.quota->limits()) user.quota->SetLimits(limits.user);
  }
}

std::unique_ptr<session::FdWatch> SessionRegistry::WatchWritable(int fd,
                                                                 std::function<void()> ready) {
  return std::make_unique<AsioFdWatch>(loop_, fd, AsioFdWatch::For::kWrite, std::move(ready));
}

void SessionRegistry::RunSlowly(std::function<void()> work, std::function<void()> done) {
  // The loop must not run out of work while the answer is on its way.
  auto guard = boost::asio::make_work_guard(loop_);
  boost::asio::post(slow_workers_, [this, guard, work = std::move(work), done = std::move(done)] {
    work();
    boost::asio::post(loop_, done);
  });
}

void SessionRegistry::EndSession(session::Session& session, const std::string& reason) {
  ++ended_by_fault_;
  Log("session").warn("fault session={} uid={} pid={} what=\"{}\"", session.identity().id,
                      session.identity().uid, session.identity().pid, reason);
  boost::asio::post(loop_, [this, id = session.identity().id, reason] {
    auto found = entries_.find(id);
    if (found != entries_.end()) EndEntry(found->second, reason);
  });
}

}  // namespace rdmad::control
