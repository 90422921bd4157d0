// One ibv_context that is open (OpenHardware), with everything that was made from it on one of its
// ports; and what each engine has of it (OpenContext): what a session's Contexts, the objects made
// from them, the engines and the removal of a device have in common.
//
// Keys are the hardware's, and so good for the QPs of all engines; each engine has a completion
// channel of its own. The first one reads the asynchronous events of all.
//
// A device may go while all of that is there (unplugged, driver unloaded, `rdma link delete`). The
// kernel may wait for every user's descriptor then, so the hardware's half of each object must go
// at once, though the objects stay until their application destroys them:
//   1. engines: Die(): nothing touches the hardware any more, all work flushes;
//   2. control: CloseHardware(): destroys what the kernel has of it, users before used. Not while
//      another thread is in a call that takes long (Use): the last of them says when it has left;
//   3. whenever: the objects, now empty, are destroyed as usual.
//
// Thread: control, but for what is said to be the engine's. Owner: shared.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"
#include "daemon/device/verbs/window_table.h"

namespace rdmad::verbs {

class VerbsDataPath;

inline constexpr uint32_t kRxeVendor = 0xffffff;

// In the order of destruction.
enum class HardwareKind : uint8_t { kMulticast, kMw, kQp, kSrq, kCq, kAh, kMr, kPd };
inline constexpr size_t kHardwareKinds = 8;

// The kernel's half of an object.
class HardwareObject {
 public:
  virtual ~HardwareObject() = default;
  // Destroys it; once, after the engine has let go of it.
  virtual void CloseHardware() noexcept = 0;
};

class OpenContext;

class OpenHardware {
 public:
  OpenHardware(ibv_context* hw, uint8_t port, const device::DeviceAttr& attr);
  OpenHardware(const OpenHardware&) = delete;
  OpenHardware& operator=(const OpenHardware&) = delete;
  ~OpenHardware();

  // False if a Use holds it: then nothing is closed yet, no further Use begins, and `when_idle`, if
  // any, says when to call again (on the thread of that Use).
  bool CloseHardware(std::function<void()> when_idle = nullptr);
  // One for each engine.
  [[nodiscard]] std::vector<std::shared_ptr<OpenContext>> contexts() const;

 private:
  friend class OpenContext;
  bool Enter();
  void Leave();
  bool closing() const;
  std::set<HardwareObject*>& Set(HardwareKind kind) { return objects_[static_cast<size_t>(kind)]; }

  ibv_context* hw_;
  const uint8_t port_;
  const std::string name_;
  const device::DeviceAttr attr_;
  std::array<std::set<HardwareObject*>, kHardwareKinds> objects_;
  std::vector<std::weak_ptr<OpenContext>> contexts_;

  mutable std::mutex mutex_;  // for what follows
  int uses_ = 0;
  bool closing_ = false;
  std::function<void()> when_idle_;
};

class OpenContext {
 public:
  // The first one. `path` outlives it. Errors: Unavailable (the device cannot be opened; says why).
  static absl::StatusOr<std::shared_ptr<OpenContext>> Open(ibv_device* device, uint8_t port,
                                                           const device::DeviceAttr& attr,
                                                           VerbsDataPath* path);
  // One for another engine's path. Errors: as Open().
  absl::StatusOr<std::shared_ptr<OpenContext>> Share(VerbsDataPath* path);
  OpenContext(const OpenContext&) = delete;
  OpenContext& operator=(const OpenContext&) = delete;
  ~OpenContext();

  [[nodiscard]] const std::shared_ptr<OpenHardware>& hardware() const noexcept { return hardware_; }
  // Null once CloseHardware() has run.
  [[nodiscard]] ibv_context* hw() const noexcept { return hardware_->hw_; }
  [[nodiscard]] ibv_comp_channel* channel() const noexcept { return channel_; }
  // Its engine reads the asynchronous events.
  [[nodiscard]] bool first() const noexcept { return first_; }
  [[nodiscard]] const std::string& device_name() const noexcept { return hardware_->name_; }
  [[nodiscard]] uint8_t port() const noexcept { return hardware_->port_; }  // any thread
  [[nodiscard]] const device::DeviceAttr& attr() const noexcept { return hardware_->attr_; }
  // The kernel's soft device, which has ways of its own.
  [[nodiscard]] bool is_rxe() const noexcept { return attr().vendor_id == kRxeVendor; }
  [[nodiscard]] VerbsDataPath& path() const noexcept { return path_; }

  void Add(HardwareKind kind, HardwareObject* object) { hardware_->Set(kind).insert(object); }
  void Remove(HardwareKind kind, HardwareObject* object) noexcept {
    hardware_->Set(kind).erase(object);
  }

  // Keeps the hardware open during a call of libibverbs that takes long. Thread: any.
  class Use {
   public:
    explicit Use(OpenContext& context)
        : hardware_(*context.hardware_), entered_(hardware_.Enter()) {}
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use() {
      if (entered_) hardware_.Leave();
    }
    // False: the device is gone, and so may be all that was made from the context.
    [[nodiscard]] bool entered() const noexcept { return entered_; }
    // The device has gone meanwhile.
    [[nodiscard]] bool closing() const { return hardware_.closing(); }

   private:
    OpenHardware& hardware_;
    const bool entered_;
  };

  // Unavailable if the hardware is gone.
  absl::Status Check(const char* operation) const;
  // Unavailable. Thread: any.
  absl::Status Removed(const char* operation) const;
  // From errno after a failed call of libibverbs: says operation, device, reason and what to do.
  // Thread: any.
  absl::Status Error(const char* operation, int error) const;

  // The engine's: set once, by Die().
  [[nodiscard]] bool dead() const noexcept { return dead_; }
  void Die() noexcept { dead_ = true; }
  // The engine's.
  [[nodiscard]] WindowTable& windows() noexcept { return windows_; }

 private:
  friend class OpenHardware;
  OpenContext(std::shared_ptr<OpenHardware> hardware, bool first, ibv_comp_channel* channel,
              VerbsDataPath& path)
      : hardware_(std::move(hardware)), first_(first), channel_(channel), path_(path) {}
  static absl::StatusOr<std::shared_ptr<OpenContext>> Make(std::shared_ptr<OpenHardware> hardware,
                                                           bool first, VerbsDataPath* path);
  void CloseChannel() noexcept;

  const std::shared_ptr<OpenHardware> hardware_;
  const bool first_;
  ibv_comp_channel* channel_;
  VerbsDataPath& path_;
  WindowTable windows_;
  bool dead_ = false;
};

// The name of a device of ours: the kernel's for port 1, with ".2" behind it for port 2. (Not "/2":
// programs make file names of it.)
std::string PortName(std::string_view ibv_name, uint8_t port);

// From an errno, with the limit that usually is behind it. Source: ibv_reg_mr(3), ibv_create_qp(3).
absl::Status VerbsError(const std::string& operation, const std::string& device, int error);

}  // namespace rdmad::verbs
