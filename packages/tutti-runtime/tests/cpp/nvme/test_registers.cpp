// SPDX-License-Identifier: Apache-2.0
// Registers of a device that is taken away: real SIGBUS, from mappings of files that are cut off.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "layer_rig.hpp"
#include "nvme/descriptor.hpp"
#include "nvme/mapped_registers.hpp"
#include "tutti/runtime/detail/io_thread.hpp"
#include "tutti/runtime/nvme/config.hpp"
#include "tutti/runtime/nvme/core/ordered.hpp"
#include "tutti/runtime/storage_runtime.hpp"

namespace {

using namespace layer_rig;

constexpr std::uint64_t kBytes = 2 * kPage;

Descriptor make_file() {
  Descriptor file(::memfd_create("registers", MFD_CLOEXEC));
  CHECK(file.is_open() && ::ftruncate(file.get(), kBytes) == 0);
  return file;
}

void cut_off(const Descriptor& file) { CHECK(::ftruncate(file.get(), 0) == 0); }

std::uint32_t* word(const MappedRegisters& registers, std::uint64_t offset) {
  return reinterpret_cast<std::uint32_t*>(registers.address() + offset);
}

void threads_read_all_ones_and_the_process_lives() {
  const Descriptor file = make_file();
  const Descriptor other_file = make_file();
  const MappedRegisters registers(file.get(), 0, kBytes);
  const MappedRegisters other(other_file.get(), 0, kBytes);
  store_release(word(registers, kCsts), 1U);
  store_release(word(other, kCsts), 1U);
  std::atomic<int> looking{0};
  std::array<std::thread, 8> threads;
  for (std::size_t i = 0; i < threads.size(); ++i) {
    const std::uint64_t offset = i % 2 == 0 ? std::uint64_t{kCsts} : kPage + 8;
    threads[i] = detail::start_io_thread("registers", [&, offset] {
      ++looking;
      while (load_acquire(word(registers, offset)) != kAllOnes) {
      }
      ring_doorbell(word(registers, kPage), 7);
    });
  }
  while (looking.load() < static_cast<int>(threads.size())) {
    std::this_thread::yield();
  }
  CHECK(!registers.is_gone());
  cut_off(file);
  for (std::thread& each : threads) {
    each.join();
  }
  CHECK(registers.is_gone() && load_acquire(word(registers, kCsts)) == kAllOnes);
  CHECK(!other.is_gone() && load_acquire(word(other, kCsts)) == 1);
}

void a_store_finds_it_gone_too() {
  const Descriptor file = make_file();
  const MappedRegisters registers(file.get(), 0, kBytes);
  cut_off(file);
  ring_doorbell(word(registers, kPage), 7);
  CHECK(registers.is_gone() && load_acquire(word(registers, kCsts)) == kAllOnes);
}

void entries_are_used_again() {
  for (int i = 0; i < 1000; ++i) {
    const Descriptor file = make_file();
    const MappedRegisters registers(file.get(), 0, kBytes);
    if (i % 3 == 0) {
      cut_off(file);
      CHECK(load_acquire(word(registers, 0)) == kAllOnes);
    }
  }
  const Descriptor file = make_file();
  std::vector<std::unique_ptr<MappedRegisters>> many;
  many.reserve(256);
  for (int i = 0; i < 256; ++i) {
    many.push_back(std::make_unique<MappedRegisters>(file.get(), 0, kBytes));
  }
  CHECK_THROWS(SystemError, std::make_unique<MappedRegisters>(file.get(), 0, kBytes));
}

/// Not through MappedRegisters: nobody's.
const std::uint32_t* map_cut_off_page() {
  const Descriptor file = make_file();
  void* const page = ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, file.get(), 0);
  CHECK(page != MAP_FAILED);
  cut_off(file);
  return static_cast<const std::uint32_t*>(page);
}

sigjmp_buf back;
std::atomic<int> caught{0};

void the_handler_before_still_has_its_faults() {
  const std::uint32_t* const page = map_cut_off_page();
  if (sigsetjmp(back, 1) == 0) {
    static_cast<void>(load_acquire(page));
    CHECK(false);
  }
  CHECK(caught.load() == 1);
  CHECK(::raise(SIGBUS) == 0);  // returns into sigsetjmp's place no more: the handler tells the two apart
  CHECK(caught.load() == 2);
}

void install_the_programs_own_handler() {
  struct sigaction mine{};
  mine.sa_flags = SA_SIGINFO;
  mine.sa_sigaction = [](int, siginfo_t* info, void*) {
    ++caught;
    if (info->si_code > 0) {
      siglongjmp(back, 1);
    }
  };
  CHECK(::sigaction(SIGBUS, &mine, nullptr) == 0);
}

/// The status of a process that has one mapping of ours and then does something.
int status_of(const std::function<void()>& action) {
  const pid_t child = ::fork();
  CHECK(child >= 0);
  if (child == 0) {
    ::alarm(60);  // an access that is tried for ever ends too
    const Descriptor file = make_file();
    const MappedRegisters registers(file.get(), 0, kBytes);
    cut_off(file);
    CHECK(load_acquire(word(registers, 0)) == kAllOnes);
    action();
    ::_exit(0);
  }
  int status = 0;
  CHECK(::waitpid(child, &status, 0) == child);
  return status;
}

void what_nobody_handles_ends_the_process_as_before() {
  ::signal(SIGBUS, SIG_DFL);  // a sanitizer has one of its own
  const auto read_elsewhere = [] { static_cast<void>(load_acquire(map_cut_off_page())); };
  const auto died = [](int status) { return WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS; };
  CHECK(died(status_of(read_elsewhere)));
  CHECK(died(status_of([] { ::raise(SIGBUS); })));
  CHECK(status_of([] {}) == 0);
  ::signal(SIGBUS, SIG_IGN);
  CHECK(died(status_of(read_elsewhere)));
  CHECK(status_of([] { ::raise(SIGBUS); }) == 0);
  ::signal(SIGBUS, SIG_DFL);
}

/// As if sent by the kernel for memory that went bad and that nobody reads now: `code` above 0.
void send(int code) {
  siginfo_t info{};
  info.si_signo = SIGBUS;
  info.si_code = code;
  CHECK(::syscall(SYS_rt_tgsigqueueinfo, ::getpid(), ::gettid(), SIGBUS, &info) == 0);
}

/// The action that a child has before it maps registers.
void act(void (*handler)(int), int flags, int also_blocked = 0) {
  struct sigaction action{};
  action.sa_handler = handler;
  action.sa_flags = flags;
  if (also_blocked != 0) {
    ::sigaddset(&action.sa_mask, also_blocked);
  }
  CHECK(::sigaction(SIGBUS, &action, nullptr) == 0);
}

void the_action_before_is_taken_as_it_asked_for() {
  const auto died = [](int status) { return WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS; };
  const auto again = [] {  // what was there still sees to ours
    const Descriptor file = make_file();
    const MappedRegisters registers(file.get(), 0, kBytes);
    cut_off(file);
    CHECK(load_acquire(word(registers, 0)) == kAllOnes);
  };
  act(SIG_DFL, SA_SIGINFO);  // the default, whatever the flags say
  CHECK(died(status_of([] { static_cast<void>(load_acquire(map_cut_off_page())); })));
  CHECK(died(status_of([] { send(BUS_MCEERR_AO); })));
  act(SIG_IGN, SA_SIGINFO);
  CHECK(status_of([&] {
          send(BUS_MCEERR_AO);
          again();
        }) == 0);
  act([](int) { CHECK(++caught == 1); }, static_cast<int>(SA_RESETHAND));
  CHECK(died(status_of([] { static_cast<void>(load_acquire(map_cut_off_page())); })));
  act([](int) { siglongjmp(back, 1); }, SA_NODEFER);
  CHECK(status_of([&] {
          const std::uint32_t* const page = map_cut_off_page();
          volatile int times = 0;
          sigsetjmp(back, 0);  // leaves the mask as it is in the handler
          if (times < 2) {
            times = times + 1;
            static_cast<void>(load_acquire(page));
          }
          CHECK(times == 2);
          again();
        }) == 0);
  act(
      [](int) {
        sigset_t blocked;
        CHECK(::pthread_sigmask(SIG_SETMASK, nullptr, &blocked) == 0);
        CHECK(::sigismember(&blocked, SIGUSR1) == 1 && ::sigismember(&blocked, SIGBUS) == 1);
        ::_exit(7);
      },
      0, SIGUSR1);
  CHECK(WEXITSTATUS(status_of([] { static_cast<void>(load_acquire(map_cut_off_page())); })) == 7);
  ::signal(SIGBUS, SIG_DFL);
}

/// Entries that are given to others while handlers look at them.
void faults_change_their_own_mapping_alone() {
  std::atomic<bool> over{false};
  std::thread others([&] {
    const Descriptor file = make_file();
    CHECK(::ftruncate(file.get(), 64 * kPage) == 0);
    for (std::uint64_t i = 0; !over; ++i) {
      const std::uint64_t size = i % 2 == 0 ? kPage : 64 * kPage;
      const MappedRegisters registers(file.get(), 0, size);
      CHECK(load_acquire(word(registers, size - 4)) == 0 && !registers.is_gone());
    }
  });
  for (int i = 0; i < 3000; ++i) {
    a_store_finds_it_gone_too();
  }
  over = true;
  others.join();
}

/// A soft controller whose status is read through registers that can be cut off.
class Pluggable final : public Transport {
 public:
  /// `may_copy`: whether the device is let to memory.
  Pluggable(std::unique_ptr<SoftTransport> inner, int file, std::atomic<bool>& may_copy)
      : inner_(std::move(inner)), registers_(file, 0, kBytes), may_copy_(may_copy) {}

  std::string name() const override { return inner_->name(); }
  std::uint32_t read32(std::uint32_t offset) override {
    return load_acquire(word(registers_, 0)) == kAllOnes ? kAllOnes : inner_->read32(offset);
  }
  std::uint64_t read64(std::uint32_t offset) override {
    return load_acquire(word(registers_, 0)) == kAllOnes ? UINT64_MAX : inner_->read64(offset);
  }
  void write32(std::uint32_t offset, std::uint32_t value) override { inner_->write32(offset, value); }
  void write64(std::uint32_t offset, std::uint64_t value) override { inner_->write64(offset, value); }
  std::uint32_t* doorbell(std::uint32_t offset) override { return inner_->doorbell(offset); }
  DmaMemory allocate(std::uint64_t size, MemoryKind kind) override { return inner_->allocate(size, kind); }
  DmaMapping map(std::byte* address, std::uint64_t size, MemoryKind kind, int device) override {
    return inner_->map(address, size, kind, device);
  }
  bool set_bus_master(bool on) noexcept override {
    may_copy_ = on;
    return inner_->set_bus_master(on);
  }
  TransportCaps caps() const override { return inner_->caps(); }

 private:
  std::unique_ptr<SoftTransport> inner_;
  MappedRegisters registers_;
  std::atomic<bool>& may_copy_;
};

SoftRule answers_late() {
  SoftRule rule;
  rule.fault = SoftFault::kLateCompletion;
  rule.delay = 600;
  rule.times = 0;
  return rule;
}

void what_is_under_way_ends_with_enodev() {
  const Descriptor file = make_file();
  const auto control = std::make_shared<SoftControl>();
  const SoftSettings soft = one_namespace();
  LayerEngineSettings settings;
  settings.command_timeout = Duration(600);  // it is not by this that it ends
  std::vector<std::unique_ptr<Controller>> controllers;
  std::atomic<bool> may_copy{false};
  controllers.push_back(std::make_unique<Controller>(
      std::make_unique<Pluggable>(make_soft_transport(soft, control), file.get(), may_copy),
      options_for(settings)));
  Transport& transport = controllers.front()->transport();
  const DmaMemory memory = transport.allocate(16 * kPage, MemoryKind::kHost);
  LayerEngine engine(std::move(controllers), make_cpu_teams(), settings);
  const std::uint32_t window =
      engine.add_window(memory.address(), memory.size(), MemoryKind::kHost, kAnyDevice);
  const BlockExtent all{0, 0, 16 * kPage / soft.namespaces.front().lba_bytes};
  CHECK(engine.add_place(0, 1, {&all, 1}) == 0);
  const std::array<LayerSlice, 2> slices{LayerSlice{0, 0, window, 0, 0, kPage},
                                         LayerSlice{0, 0, window, kPage, kPage, kPage}};
  const std::uint32_t layer = engine.add_layer(IoOpcode::kRead, slices);
  CHECK(engine.wait(engine.submit(layer), Duration(60)) && engine.statuses(layer)[0] == 0);
  control->add(answers_late());
  CHECK(may_copy);
  const std::uint64_t ticket = engine.submit(layer);
  CHECK(control->wait_faults(slices.size(), Duration(60)));  // both are under way
  cut_off(file);
  CHECK(engine.wait(ticket, Duration(60)));
  CHECK(engine.statuses(layer)[0] == ENODEV && engine.statuses(layer)[1] == ENODEV);
  CHECK(!may_copy);  // the device works still, and the memory is the caller's again
  control->heal();
}

void a_runtimes_item_ends_with_enodev_too() {
  const Descriptor file = make_file();
  const auto control = std::make_shared<SoftControl>();
  std::atomic<bool> may_copy{false};
  NvmeConfig config;
  config.command_timeout = 600;
  config.controllers.push_back({"disk0",
                                [&] {
                                  return std::make_unique<Pluggable>(
                                      make_soft_transport(one_namespace(), control), file.get(), may_copy);
                                },
                                {}});
  const auto runtime = make_nvme_runtime(config);
  alignas(65536) static std::array<std::byte, kPage> memory;
  const std::uint64_t window =
      runtime->register_memory(reinterpret_cast<std::uint64_t>(memory.data()), memory.size());
  const std::uint64_t target = runtime->open("nvme://disk0/1", true);
  control->add(answers_late());
  CHECK(may_copy);
  const IoRequest request{static_cast<std::uint32_t>(Direction::kRead), 0, window, 0, target, 0, kPage};
  std::int32_t error = 0;
  const auto handle = runtime->submit({&request, 1}, {&error, 1}, {});
  CHECK(handle && control->wait_faults(1, Duration(60)));
  cut_off(file);
  const auto done = runtime->wait(*handle, Duration(60));
  CHECK(done && done->status.at(0) == ENODEV && !done->late_handle);
  CHECK(!may_copy);
  CHECK(runtime->shutdown(Duration(60)));
  control->heal();
}

}  // namespace

int main() {
  what_nobody_handles_ends_the_process_as_before();  // forks: first
  the_action_before_is_taken_as_it_asked_for();
  install_the_programs_own_handler();
  threads_read_all_ones_and_the_process_lives();
  a_store_finds_it_gone_too();
  entries_are_used_again();
  faults_change_their_own_mapping_alone();
  the_handler_before_still_has_its_faults();
  what_is_under_way_ends_with_enodev();
  a_runtimes_item_ends_with_enodev_too();
  return 0;
}
