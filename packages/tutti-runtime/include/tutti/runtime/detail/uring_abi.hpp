// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

/// The part of the kernel's io_uring interface that this library uses, so that it builds with any kernel
/// headers and finds newer features at run time. Layouts and numbers are those of io_uring_setup(2),
/// io_uring_enter(2) and io_uring_register(2); the kernel never changes them.
namespace tutti::runtime::detail::abi {

inline constexpr long kSetup = 425;
inline constexpr long kEnter = 426;
inline constexpr long kRegister = 427;

inline constexpr std::uint64_t kMapSubmissionRing = 0;
inline constexpr std::uint64_t kMapEntries = 0x10000000;

enum SetupFlag : std::uint32_t {
  kSetupSubmitAll = 1U << 7,      // 5.18: one bad entry does not hold back those behind it
  kSetupCoopTaskrun = 1U << 8,    // 5.19: no interrupt of the submitting thread to finish an operation
  kSetupSingleIssuer = 1U << 12,  // 6.0: one thread submits, which spares locks
  kSetupDeferTaskrun = 1U << 13,  // 6.1: completions are worked on when that thread asks for them
};

inline constexpr std::uint32_t kFeatureSingleMmap = 1U << 0;
inline constexpr std::uint32_t kEnterGetEvents = 1U << 0;
inline constexpr std::uint32_t kFsyncDatasync = 1U << 0;
inline constexpr std::uint8_t kSqeAsync = 1U << 4;

enum Opcode : std::uint8_t { kFsync = 3, kReadFixed = 4, kWriteFixed = 5, kRead = 22, kWrite = 23 };

enum RegisterOpcode : std::uint32_t {
  kRegisterProbe = 8,
  kRegisterBuffers2 = 15,
  kRegisterBuffersUpdate = 16
};
inline constexpr std::uint32_t kRegisterSparse = 1U << 0;  // 5.19
inline constexpr std::uint16_t kProbeSupported = 1U << 0;
inline constexpr std::uint32_t kMaxBuffers = 1U << 14;
inline constexpr std::uint64_t kMaxBufferBytes = std::uint64_t{1} << 30;

struct Sqe {
  std::uint8_t opcode;
  std::uint8_t flags;
  std::uint16_t ioprio;
  std::int32_t fd;
  std::uint64_t offset;
  std::uint64_t address;
  std::uint32_t length;
  std::uint32_t op_flags;
  std::uint64_t user_data;
  std::uint16_t buffer_index;
  std::uint16_t personality;
  std::int32_t file_index;
  std::uint64_t unused[2];
};
static_assert(sizeof(Sqe) == 64 && offsetof(Sqe, user_data) == 32 && offsetof(Sqe, buffer_index) == 40);

struct Cqe {
  std::uint64_t user_data;
  std::int32_t result;
  std::uint32_t flags;
};
static_assert(sizeof(Cqe) == 16);

struct SubmissionOffsets {
  std::uint32_t head, tail, ring_mask, ring_entries, flags, dropped, array, unused1;
  std::uint64_t unused2;
};

struct CompletionOffsets {
  std::uint32_t head, tail, ring_mask, ring_entries, overflow, cqes, flags, unused1;
  std::uint64_t unused2;
};

struct Params {
  std::uint32_t sq_entries, cq_entries, flags, sq_thread_cpu, sq_thread_idle, features, wq_fd, unused[3];
  SubmissionOffsets sq;
  CompletionOffsets cq;
};
static_assert(sizeof(Params) == 120 && offsetof(Params, sq) == 40 && offsetof(Params, cq) == 80);

struct ProbeOp {
  std::uint8_t opcode;
  std::uint8_t unused1;
  std::uint16_t flags;
  std::uint32_t unused2;
};

struct Probe {
  std::uint8_t last_op;
  std::uint8_t op_count;
  std::uint16_t unused1;
  std::uint32_t unused2[3];
  ProbeOp ops[256];
};
static_assert(sizeof(ProbeOp) == 8 && offsetof(Probe, ops) == 16);

struct ResourceRegister {
  std::uint32_t count, flags;
  std::uint64_t unused, data, tags;
};
static_assert(sizeof(ResourceRegister) == 32);

struct ResourceUpdate {
  std::uint32_t offset, unused1;
  std::uint64_t data, tags;
  std::uint32_t count, unused2;
};
static_assert(sizeof(ResourceUpdate) == 32);

}  // namespace tutti::runtime::detail::abi
