// SPDX-License-Identifier: Apache-2.0
#include "soft_storage.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <exception>
#include <string>

#include "tutti/runtime/error.hpp"

namespace tutti::runtime::nvme::soft {
namespace {

constexpr std::uint64_t kBounceBytes = std::uint64_t{1} << 20;

}  // namespace

Storage::Storage(const SoftNamespace& settings, int device)
    : lba_bytes_(settings.lba_bytes), metadata_bytes_(settings.metadata_bytes), bytes_(settings.bytes) {
  if (!std::has_single_bit(lba_bytes_) || lba_bytes_ < 512 || lba_bytes_ > 4096) {
    throw InvalidArgument("lba_bytes=" + std::to_string(lba_bytes_) + " must be 512, 1024, 2048 or 4096");
  }
  if (!settings.image.empty()) {
    fd_ = ::open(settings.image.c_str(), O_RDWR | O_CLOEXEC);
    struct stat info{};
    if (fd_ < 0 || ::fstat(fd_, &info) != 0) {
      const int error = errno;
      if (fd_ >= 0) {
        ::close(fd_);
      }
      throw SystemError(error, std::string("cannot open the image: ") + std::strerror(error), settings.image);
    }
    bytes_ = bytes_ != 0 ? bytes_ : static_cast<std::uint64_t>(info.st_size) / lba_bytes_ * lba_bytes_;
  }
  if (bytes_ == 0 || bytes_ % lba_bytes_ != 0) {
    if (fd_ >= 0) {
      ::close(fd_);
    }
    throw InvalidArgument("bytes=" + std::to_string(bytes_) + " must be a multiple of lba_bytes=" +
                          std::to_string(lba_bytes_) + " and more than 0");
  }
  blocks_ = bytes_ / lba_bytes_;
  if (fd_ < 0) {
    void* memory =
        ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      throw SystemError(errno, "cannot have " + std::to_string(bytes_) + " bytes for a namespace");
    }
    memory_ = static_cast<std::byte*>(memory);
  }
  if (device != kAnyDevice) {
    try {
      stream_ = std::make_unique<shim::WorkStream>(device, shim::kAnswerPriority);
      bounce_.resize(memory_ != nullptr ? 0 : kBounceBytes);
      std::byte* const pinned = memory_ != nullptr ? memory_ : bounce_.data();
      pin_ = std::make_unique<detail::HostPin>(pinned, memory_ != nullptr ? bytes_ : kBounceBytes, device);
      warm_up();
    } catch (...) {
      close_all();
      throw;
    }
  }
}

Storage::~Storage() { close_all(); }

void Storage::close_all() noexcept {
  pin_.reset();
  if (memory_ != nullptr) {
    ::munmap(memory_, bytes_);
  }
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

bool Storage::read_image(std::uint64_t place, std::span<std::byte> piece) noexcept {
  std::size_t done = 0;
  while (done < piece.size()) {
    const ssize_t part =
        ::pread(fd_, piece.data() + done, piece.size() - done, static_cast<off_t>(place + done));
    if (part == 0) {  // beyond the end of a sparse image
      std::memset(piece.data() + done, 0, piece.size() - done);
      break;
    }
    if (part < 0) {
      return false;
    }
    done += static_cast<std::size_t>(part);
  }
  return true;
}

bool Storage::write_image(std::uint64_t place, std::span<const std::byte> piece) noexcept {
  std::size_t done = 0;
  while (done < piece.size()) {
    const ssize_t part =
        ::pwrite(fd_, piece.data() + done, piece.size() - done, static_cast<off_t>(place + done));
    if (part <= 0) {
      return false;
    }
    done += static_cast<std::size_t>(part);
  }
  return true;
}

void Storage::warm_up() {
  if (stream_ == nullptr) {
    return;
  }
  const shim::ScopedContext current(stream_->context());
  const std::uint64_t most = memory_ != nullptr ? std::min(bytes_, kBounceBytes) : kBounceBytes;
  std::byte* const host = memory_ != nullptr ? memory_ : bounce_.data();
  shim::CuDevicePtr memory = 0;
  shim::check("cuMemAlloc", shim::cuda_launch().mem_alloc(&memory, most));
  auto* const device = reinterpret_cast<std::byte*>(memory);
  int error = 0;
  for (std::uint64_t size = most; error == 0 && size > 0; size = size > lba_bytes_ ? lba_bytes_ : 0) {
    error = stream_->copy_to_device(device, host, size);
    error = error != 0 ? error : stream_->copy_to_host(host, device, size);
    error = error != 0 ? error : stream_->wait();
  }
  shim::cuda_launch().mem_free(memory);
  if (error != 0) {
    throw SystemError(error, "cannot copy between a soft controller's blocks and the device");
  }
}

/// One copy, between the blocks or the bounce buffer and the device.
bool Storage::copy(std::byte* host, std::span<std::byte> piece, bool read) noexcept {
  return (read ? stream_->copy_to_device(piece.data(), host, piece.size())
               : stream_->copy_to_host(host, piece.data(), piece.size())) == 0;
}

/// Through the bounce buffer, as much as it holds at a time.
bool Storage::bounce(std::uint64_t place, std::span<std::byte> piece, bool read) noexcept {
  while (!piece.empty()) {
    const std::span<std::byte> part = piece.first(std::min(piece.size(), bounce_.size()));
    const std::span<std::byte> host(bounce_.data(), part.size());
    if ((read && !read_image(place, host)) || !copy(host.data(), part, read) || stream_->wait() != 0 ||
        (!read && !write_image(place, host))) {
      return false;
    }
    place += part.size();
    piece = piece.subspan(part.size());
  }
  return true;
}

bool Storage::move_on_device(std::uint64_t place, const DataPieces& data, bool read) noexcept {
  const TimePoint begin = Clock::now();
  try {
    const shim::ScopedContext current(stream_->context());
    for (const std::span<std::byte> piece : data.pieces) {
      if (memory_ != nullptr ? !copy(memory_ + place, piece, read) : !bounce(place, piece, read)) {
        return false;
      }
      place += piece.size();
    }
    const bool good = stream_->wait() == 0;
    last_copy_ = Clock::now() - begin;
    return good;
  } catch (const std::exception&) {
    return false;
  }
}

bool Storage::read(std::uint64_t place, const DataPieces& data) noexcept {
  if (data.on_device) {
    return move_on_device(place, data, true);
  }
  for (const std::span<std::byte> piece : data.pieces) {
    if (memory_ != nullptr) {
      std::memcpy(piece.data(), memory_ + place, piece.size());
    } else if (!read_image(place, piece)) {
      return false;
    }
    place += piece.size();
  }
  return true;
}

bool Storage::write(std::uint64_t place, const DataPieces& data) noexcept {
  if (data.on_device) {
    return move_on_device(place, data, false);
  }
  for (const std::span<std::byte> piece : data.pieces) {
    if (memory_ != nullptr) {
      std::memcpy(memory_ + place, piece.data(), piece.size());
    } else if (!write_image(place, piece)) {
      return false;
    }
    place += piece.size();
  }
  return true;
}

bool Storage::flush() noexcept { return fd_ < 0 || ::fdatasync(fd_) == 0; }

}  // namespace tutti::runtime::nvme::soft
