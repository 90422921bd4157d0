#include "daemon/control/run_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/base/status_macros.h"

namespace rdmad::control {
namespace {

constexpr uid_t kFirstPersonUid = 1000;  // login.defs: UID_MIN
constexpr mode_t kWritableByOthers = S_IWGRP | S_IWOTH;

absl::Status SystemError(const std::string& what) {
  return absl::ErrnoToStatus(errno, what);
}

const char* FileTypeName(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFREG:
      return "a regular file";
    case S_IFDIR:
      return "a directory";
    case S_IFLNK:
      return "a symbolic link";
    case S_IFIFO:
      return "a named pipe";
    case S_IFSOCK:
      return "a socket";
    default:
      return "a device node";
  }
}

sockaddr_un UnixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // ChooseRunDir() and Open() have checked the length.
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

absl::Status CheckLength(const std::string& path) {
  const size_t most = sizeof(sockaddr_un::sun_path) - 1 - std::strlen(kAttachSocketName) - 1;
  if (path.size() <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("run directory ", path, ": ", path.size(),
                                                 " bytes are too long, a socket's path allows ",
                                                 most, "; choose a shorter --run-dir"));
}

// The pid in the lock file, for messages; 0 if there is none.
long ReadPid(int fd) {
  char text[32] = {};
  if (pread(fd, text, sizeof(text) - 1, 0) <= 0) return 0;
  return std::strtol(text, nullptr, 10);
}

absl::Status CheckDirectory(const std::string& path, int fd, const DaemonIdentity& identity) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return SystemError(absl::StrCat("run directory ", path));
  if (info.st_uid != identity.uid && info.st_uid != 0) {
    return absl::FailedPreconditionError(absl::StrCat("run directory ", path, " belongs to uid ",
                                                      info.st_uid, ", not to uid ", identity.uid,
                                                      "; choose another --run-dir or chown it"));
  }
  // Who can write there can put another socket in the place of ours.
  if ((info.st_mode & kWritableByOthers) != 0) {
    return absl::FailedPreconditionError(
        absl::StrFormat("run directory %s has mode %04o: others may write into it; chmod go-w %s",
                        path, info.st_mode & 07777, path));
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> TakeLock(const std::string& path, int directory) {
  UniqueFd lock(openat(directory, kLockFileName, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) {
    if (errno == EACCES) {
      return absl::PermissionDeniedError(
          absl::StrCat("run directory ", path,
                       ": no right to write there; run as its owner or choose "
                       "another --run-dir"));
    }
    return SystemError(absl::StrCat("cannot open ", path, "/", kLockFileName));
  }
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK)
      return SystemError(absl::StrCat("cannot lock ", path, "/", kLockFileName));
    const long pid = ReadPid(lock.get());
    return absl::AlreadyExistsError(
        absl::StrCat("another rdmad", pid > 0 ? absl::StrCat(" (pid ", pid, ")") : "", " serves ",
                     path, "; stop it or choose another --run-dir"));
  }
  const std::string pid = absl::StrCat(getpid(), "\n");
  if (ftruncate(lock.get(), 0) != 0 ||
      pwrite(lock.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return SystemError(absl::StrCat("cannot write ", path, "/", kLockFileName));
  }
  return lock;
}

}  // namespace

DaemonIdentity DaemonIdentity::OfThisProcess() {
  const uid_t uid = geteuid();
  return {uid, uid < kFirstPersonUid};
}

absl::StatusOr<std::string> ChooseRunDir(const std::string& flag, const std::string& config,
                                         const RunDirEnvironment& environment,
                                         const DaemonIdentity& identity) {
  std::string path;
  // systemd separates several directories by a colon; ours is the first.
  const std::string from_systemd =
      environment.runtime_directory.substr(0, environment.runtime_directory.find(':'));
  for (const std::string* candidate : {&flag, &environment.rdmad_run_dir, &config, &from_systemd}) {
    if (!candidate->empty()) {
      path = *candidate;
      break;
    }
  }
  if (path.empty() && identity.uid == 0) path = "/run/rdmad";
  if (path.empty() && !environment.xdg_runtime_dir.empty()) {
    path = environment.xdg_runtime_dir + "/rdmad";
  }
  if (path.empty()) {
    return absl::InvalidArgumentError(
        "no run directory: XDG_RUNTIME_DIR is not set; pass --run-dir DIR or set RDMAD_RUN_DIR");
  }
  if (path.front() != '/') {
    return absl::InvalidArgumentError(
        absl::StrCat("run directory ", path, " is not an absolute path; begin it with /"));
  }
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  RD_RETURN_IF_ERROR(CheckLength(path));
  return path;
}

absl::StatusOr<RunDir> RunDir::Open(const std::string& path, const DaemonIdentity& identity) {
  RD_RETURN_IF_ERROR(CheckLength(path));
  const mode_t mode = identity.system ? 0755 : 0700;
  const bool made = mkdir(path.c_str(), mode) == 0;
  if (!made && errno != EEXIST)
    return SystemError(absl::StrCat("cannot make run directory ", path));
  UniqueFd directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) {
    if (errno == ENOTDIR) {
      return absl::FailedPreconditionError(
          absl::StrCat("run directory ", path, " is no directory; choose another --run-dir"));
    }
    return SystemError(absl::StrCat("cannot open run directory ", path));
  }
  // mkdir's mode went through the umask.
  if (made && fchmod(directory.get(), mode) != 0) {
    return SystemError(absl::StrCat("cannot set the mode of run directory ", path));
  }
  RD_RETURN_IF_ERROR(CheckDirectory(path, directory.get(), identity));
  RD_ASSIGN_OR_RETURN(UniqueFd lock, TakeLock(path, directory.get()));
  return RunDir(path, identity.system, std::move(directory), std::move(lock));
}

RunDir::RunDir(std::string path, bool system, UniqueFd directory, UniqueFd lock)
    : path_(std::move(path)),
      system_(system),
      directory_(std::move(directory)),
      lock_(std::move(lock)) {}

RunDir::~RunDir() {
  RemoveSockets();
}

absl::Status RunDir::ClearWay(const char* name, int type) {
  struct stat info {};
  if (fstatat(directory_.get(), name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return SystemError(absl::StrCat("cannot look at ", PathOf(name)));
  }
  if (!S_ISSOCK(info.st_mode)) {
    return absl::AlreadyExistsError(absl::StrCat(PathOf(name), " is ", FileTypeName(info.st_mode),
                                                 ", not a socket of rdmad; move it away"));
  }
  UniqueFd probe(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe) return SystemError("cannot open a socket");
  const sockaddr_un address = UnixAddress(PathOf(name));
  const bool answered =
      connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  if (answered || errno != ECONNREFUSED) {
    // Also EPROTOTYPE (a socket of another type) and EAGAIN (a full backlog): somebody lives there.
    return absl::AlreadyExistsError(absl::StrCat(
        PathOf(name), " is a socket that another program serves; choose another --run-dir"));
  }
  if (unlinkat(directory_.get(), name, 0) != 0 && errno != ENOENT) {
    return SystemError(absl::StrCat("cannot remove the stale socket ", PathOf(name)));
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> RunDir::Listen(const char* name, int type, int backlog) {
  RD_RETURN_IF_ERROR(ClearWay(name, type));
  UniqueFd listener(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener) return SystemError("cannot open a socket");
  const std::string path = PathOf(name);
  const sockaddr_un address = UnixAddress(path);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return SystemError(absl::StrCat("cannot bind ", path));
  }
  struct stat info {};
  if (fstatat(directory_.get(), name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
    return SystemError(absl::StrCat("cannot look at ", path));
  }
  sockets_.push_back({name, info.st_dev, info.st_ino});
  // Nobody can connect before listen(), so nobody sees the mode that the umask left.
  if (fchmodat(directory_.get(), name, system_ ? 0666 : 0600, 0) != 0) {
    return SystemError(absl::StrCat("cannot set the mode of ", path));
  }
  if (listen(listener.get(), backlog) != 0)
    return SystemError(absl::StrCat("cannot listen on ", path));
  return listener;
}

void RunDir::RemoveSockets() noexcept {
  for (const OwnSocket& own : sockets_) {
    struct stat info {};
    if (fstatat(directory_.get(), own.name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (info.st_dev != own.device || info.st_ino != own.inode) continue;
    unlinkat(directory_.get(), own.name.c_str(), 0);
  }
  sockets_.clear();
}

}  // namespace rdmad::control
