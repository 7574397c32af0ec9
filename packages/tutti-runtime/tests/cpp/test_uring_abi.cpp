// SPDX-License-Identifier: Apache-2.0
// Our io_uring interface against the kernel's own header, where the build machine has a recent one.
#include "check.hpp"
#include "tutti/runtime/detail/uring_abi.hpp"

#if __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#include <sys/syscall.h>
#endif

namespace abi = tutti::runtime::detail::abi;

// The kernel's numbers are of many enumerations.
[[maybe_unused]] constexpr bool same(long ours, long kernels) { return ours == kernels; }

int main() {
#ifdef IORING_FEAT_SINGLE_MMAP
  CHECK(sizeof(abi::Sqe) == sizeof(io_uring_sqe));
  CHECK(offsetof(abi::Sqe, fd) == offsetof(io_uring_sqe, fd));
  CHECK(offsetof(abi::Sqe, offset) == offsetof(io_uring_sqe, off));
  CHECK(offsetof(abi::Sqe, address) == offsetof(io_uring_sqe, addr));
  CHECK(offsetof(abi::Sqe, length) == offsetof(io_uring_sqe, len));
  CHECK(offsetof(abi::Sqe, op_flags) == offsetof(io_uring_sqe, rw_flags));
  CHECK(offsetof(abi::Sqe, user_data) == offsetof(io_uring_sqe, user_data));
  CHECK(offsetof(abi::Sqe, buffer_index) == offsetof(io_uring_sqe, buf_index));
  CHECK(sizeof(abi::Cqe) == sizeof(io_uring_cqe));
  CHECK(sizeof(abi::Params) == sizeof(io_uring_params));
  CHECK(offsetof(abi::Params, features) == offsetof(io_uring_params, features));
  CHECK(sizeof(abi::SubmissionOffsets) == sizeof(io_sqring_offsets));
  CHECK(offsetof(abi::SubmissionOffsets, array) == offsetof(io_sqring_offsets, array));
  CHECK(offsetof(abi::CompletionOffsets, cqes) == offsetof(io_cqring_offsets, cqes));
  CHECK(sizeof(abi::ProbeOp) == sizeof(io_uring_probe_op));
  CHECK(sizeof(abi::ResourceUpdate) == sizeof(io_uring_rsrc_update2));
  CHECK(sizeof(abi::ResourceRegister) == sizeof(io_uring_rsrc_register));
  CHECK(same(abi::kRead, IORING_OP_READ) && same(abi::kWrite, IORING_OP_WRITE) &&
        same(abi::kFsync, IORING_OP_FSYNC));
  CHECK(same(abi::kReadFixed, IORING_OP_READ_FIXED) && same(abi::kWriteFixed, IORING_OP_WRITE_FIXED));
  CHECK(same(abi::kRegisterProbe, IORING_REGISTER_PROBE));
  CHECK(same(abi::kRegisterBuffers2, IORING_REGISTER_BUFFERS2));
  CHECK(same(abi::kRegisterBuffersUpdate, IORING_REGISTER_BUFFERS_UPDATE));
  CHECK(same(abi::kMapEntries, IORING_OFF_SQES) && same(abi::kMapSubmissionRing, IORING_OFF_SQ_RING));
  CHECK(same(abi::kEnterGetEvents, IORING_ENTER_GETEVENTS) &&
        same(abi::kFsyncDatasync, IORING_FSYNC_DATASYNC));
  CHECK(same(abi::kFeatureSingleMmap, IORING_FEAT_SINGLE_MMAP) && same(abi::kSqeAsync, IOSQE_ASYNC));
  CHECK(same(abi::kProbeSupported, IO_URING_OP_SUPPORTED));
#endif
#ifdef IORING_SETUP_DEFER_TASKRUN
  CHECK(same(abi::kSetupSubmitAll, IORING_SETUP_SUBMIT_ALL) &&
        same(abi::kSetupCoopTaskrun, IORING_SETUP_COOP_TASKRUN));
  CHECK(same(abi::kSetupSingleIssuer, IORING_SETUP_SINGLE_ISSUER));
  CHECK(same(abi::kSetupDeferTaskrun, IORING_SETUP_DEFER_TASKRUN));
  CHECK(same(abi::kRegisterSparse, IORING_RSRC_REGISTER_SPARSE));
#endif
#ifdef __NR_io_uring_setup
  CHECK(same(abi::kSetup, __NR_io_uring_setup) && same(abi::kEnter, __NR_io_uring_enter));
  CHECK(same(abi::kRegister, __NR_io_uring_register));
#endif
}
