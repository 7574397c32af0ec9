// SPDX-License-Identifier: Apache-2.0
// A controller as a client of a broker sees it. Registers and the admin queue are those of no device: writes
// to them become requests to the daemon, which runs them on the real one.
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "session.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/nvme/core/completion.hpp"
#include "tutti/runtime/nvme/core/ring.hpp"
#include "tutti/runtime/nvme/registers.hpp"

namespace tutti::runtime::nvme {
namespace {

using broker::Session;

std::uint64_t whole_pages(std::uint64_t size) {
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return (size + page - 1) / page * page;
}

/// Memory that this side made, by its addresses on the bus. Thread-safe.
class OwnMemory {
 public:
  void add(std::uint64_t iova, std::span<std::byte> memory) {
    const std::lock_guard lock(mutex_);
    made_.insert_or_assign(iova, memory);
  }
  void remove(std::uint64_t iova) {
    const std::lock_guard lock(mutex_);
    made_.erase(iova);
  }
  /// Null where no piece has all of it.
  [[nodiscard]] std::byte* find(std::uint64_t iova, std::uint64_t size) const {
    const std::lock_guard lock(mutex_);
    auto piece = made_.upper_bound(iova);
    if (piece == made_.begin()) {
      return nullptr;
    }
    --piece;
    const std::uint64_t inside = iova - piece->first;
    const std::span<std::byte> memory = piece->second;
    return inside <= memory.size() && size <= memory.size() - inside ? memory.data() + inside : nullptr;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::span<std::byte>> made_;
};

/// What the windows of a transport need for as long as one of them is there.
struct Lease {
  explicit Lease(const BrokerOptions& options) : session(options) {}
  Session session;
  OwnMemory own;
};

/// A window that the daemon knows, and memory of ours that it may be.
struct Window {
  std::shared_ptr<Lease> lease;
  SharedMapping memory;
  std::uint32_t id = 0;
  std::uint64_t iova = 0;

  Window(std::shared_ptr<Lease> of, SharedMapping mapped, const Session::Window& window)
      : lease(std::move(of)), memory(std::move(mapped)), id(window.id), iova(window.runs.front().iova) {
    if (memory.size() != 0) {
      lease->own.add(iova, {memory.address(), memory.size()});
    }
  }
  ~Window() {
    if (memory.size() != 0) {
      lease->own.remove(iova);
    }
    lease->session.unmap(id);
  }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
};

/// The admin queue of which the driver writes one side. Its other side is here.
struct AdminRings {
  const Command* sq = nullptr;
  Completion* cq = nullptr;
  std::uint32_t sq_depth = 0;
  std::uint32_t cq_depth = 0;
  std::uint32_t head = 0;
  std::uint32_t tail = 0;  ///< of the completion queue
  bool phase = true;
};

class BrokerTransport final : public Transport {
 public:
  explicit BrokerTransport(const BrokerOptions& options)
      : lease_(std::make_shared<Lease>(options)), session_(&lease_->session) {}

  std::string name() const override { return "broker:" + session_->socket_path() + ":" + session_->name(); }

  std::uint32_t read32(std::uint32_t offset) override {
    const std::uint32_t state = session_->state();
    if (state == broker::kOver || state == broker::kDown) {
      return kAllOnes;
    }
    const std::lock_guard lock(mutex_);
    switch (offset) {
      case kCap:
        return static_cast<std::uint32_t>(session_->welcome().cap);
      case kCap + 4:
        return static_cast<std::uint32_t>(session_->welcome().cap >> 32);
      case kVs:
        return session_->welcome().version;
      case kCc:  // a controller that was reset by another has forgotten that it was enabled
        return state == broker::kUp ? cc_ : cc_ & ~kCcEnable;
      case kCsts: {
        const std::uint32_t shut_down = (cc_ & kCcShutdownMask) != 0 ? kCstsShutdownDone : 0U;
        return (ready_ && state == broker::kUp ? kCstsReady : 0U) | shut_down;
      }
      default:
        return 0;
    }
  }
  std::uint64_t read64(std::uint32_t offset) override {
    const std::uint64_t low = read32(offset);
    return low | (std::uint64_t{read32(offset + 4)} << 32);
  }

  void write32(std::uint32_t offset, std::uint32_t value) override {
    const std::lock_guard lock(mutex_);
    if (offset == kCc) {
      configure(value);
    } else if (offset == kAqa) {
      aqa_ = value;
    } else if (offset == sq_tail_doorbell(0, sizeof(std::uint32_t))) {
      run_admin(value);
    }
  }
  void write64(std::uint32_t offset, std::uint64_t value) override {
    const std::lock_guard lock(mutex_);
    if (offset == kAsq) {
      asq_ = value;
    } else if (offset == kAcq) {
      acq_ = value;
    }
  }

  std::uint32_t* doorbell(std::uint32_t offset) override {
    constexpr std::uint32_t first =
        kDoorbells + 2 * sizeof(std::uint32_t);  // behind those of the admin queue
    const std::uint32_t place = offset - kDoorbells;
    return offset >= first && place + 4 <= session_->welcome().doorbell_bytes
               ? session_->doorbells() + place / 4
               : nullptr;
  }

  DmaMemory allocate(std::uint64_t size, MemoryKind kind) override {
    refuse_device(kind);
    size = whole_pages(size);
    const Descriptor file = broker::make_memory_file("tutti-nvme", size);
    SharedMapping memory(file.get(), 0, size, true);
    std::byte* const address = memory.address();
    const Session::Window window = session_->map(file.get(), 0, size);
    auto owner = std::make_shared<Window>(lease_, std::move(memory), window);
    if (window.runs.size() != 1) {
      throw SystemError(ENOTSUP, name() + ": queues must lie in one piece on the bus");
    }
    return {address, window.runs.front().iova, size, std::move(owner)};
  }

  DmaMapping map(std::byte* address, std::uint64_t size, MemoryKind kind, int /*device*/) override {
    refuse_device(kind);
    const std::uint64_t pages = whole_pages(size);
    const broker::FilePlace place = broker::find_file(address, size);
    Session::Window window = session_->map(place.file.get(), place.offset, pages);
    window.runs.back().size -= pages - size;
    auto owner = std::make_shared<Window>(lease_, SharedMapping(), window);
    return {address, size, std::move(window.runs), std::move(owner)};
  }

  /// The daemon ends the queues, or cuts the device off: either way nothing of this client reaches memory.
  bool set_bus_master(bool on) noexcept override {
    if (on) {
      return true;
    }
    try {
      session_->reset();
      return true;
    } catch (const Error&) {
      const std::uint32_t state = session_->state();
      return state == broker::kOver || state == broker::kDown;
    }
  }

  std::vector<std::uint16_t> queue_ids() const override { return session_->queue_ids(); }

  std::string describe_gone() const override {
    if (session_->state() == broker::kDown) {
      return "tutti-nvmed lost the device, or cut it off; it tries it again whenever it is asked to";
    }
    return session_->daemon_ended()
               ? "the tutti-nvmed that owned the controller has ended; make a new runtime once it runs again"
               : "tutti-nvmed has ended the lease (no heartbeat, or a request that it could not take); make "
                 "a "
                 "new runtime";
  }

  TransportCaps caps() const override {
    TransportCaps caps;
    caps.doorbell_stores = true;
    caps.page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    caps.limits = "memory that is no memfd shared with the daemon, and memory of a GPU";
    caps.broker = session_->socket_path();
    caps.ranges = session_->ranges();
    return caps;
  }

 private:
  static void refuse_device(MemoryKind kind) {
    if (kind == MemoryKind::kDevice) {
      throw InvalidArgument(
          "kind='device' cannot be shared with a broker: use pinned host memory in a memfd");
    }
  }

  void configure(std::uint32_t value) {
    const bool was = (cc_ & kCcEnable) != 0;
    const bool is = (value & kCcEnable) != 0;
    const bool handed_back = !is && (cc_ & kCcShutdownMask) != 0;
    cc_ = value;
    if (was == is && is) {
      return;
    }
    if (is) {
      ready_ = begin_admin();
      return;
    }
    try {
      session_->reset();
      ready_ = false;
      if (handed_back) {
        session_->end();  // its windows go with it
      }
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): CSTS.RDY does not fall, and the driver says so
    }
  }

  [[nodiscard]] bool begin_admin() {
    rings_ = {};
    rings_.sq_depth = (aqa_ & 0xfffU) + 1;
    rings_.cq_depth = ((aqa_ >> 16) & 0xfffU) + 1;
    rings_.sq = reinterpret_cast<const Command*>(lease_->own.find(asq_, rings_.sq_depth * sizeof(Command)));
    rings_.cq = reinterpret_cast<Completion*>(lease_->own.find(acq_, rings_.cq_depth * sizeof(Completion)));
    return rings_.sq != nullptr && rings_.cq != nullptr;
  }

  void run_admin(std::uint32_t tail) {
    while (ready_ && tail < rings_.sq_depth && rings_.head != tail) {
      const Command command = rings_.sq[rings_.head];
      rings_.head = ring_next(rings_.head, rings_.sq_depth);
      broker::Answer answer{};
      try {
        const Session::Result result = session_->admin(command);
        answer = result.answer;
        std::byte* const to = lease_->own.find(command.data_low, result.data.size());
        if (!result.data.empty() && to != nullptr) {
          std::memcpy(to, result.data.data(), result.data.size());
        }
      } catch (const Error&) {
        answer.status = kStatusInternalError;
      }
      Completion& slot = rings_.cq[rings_.tail];
      slot.dw0 = answer.dw0;
      slot.dw1 = 0;
      slot.dw2 = rings_.head;
      store_release(&slot.dw3,
                    command.cid | (rings_.phase ? 1U << 16 : 0U) | (std::uint32_t{answer.status} << 17));
      rings_.tail = ring_next(rings_.tail, rings_.cq_depth);
      rings_.phase = rings_.tail == 0 ? !rings_.phase : rings_.phase;
    }
  }

  const std::shared_ptr<Lease> lease_;
  Session* const session_;
  std::mutex mutex_;
  std::uint32_t cc_ = 0;
  std::uint32_t aqa_ = 0;
  std::uint64_t asq_ = 0;
  std::uint64_t acq_ = 0;
  bool ready_ = false;
  AdminRings rings_;
};

}  // namespace

std::unique_ptr<Transport> open_broker(const BrokerOptions& options) {
  return std::make_unique<BrokerTransport>(options);
}

}  // namespace tutti::runtime::nvme
