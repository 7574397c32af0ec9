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
      stream_ = std::make_unique<shim::WorkStream>(device);
      if (memory_ != nullptr) {
        pin_ = std::make_unique<detail::HostPin>(memory_, bytes_, device);
      }
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

bool Storage::move_on_device(std::uint64_t place, const DataPieces& data, bool read) noexcept {
  try {
    const shim::ScopedContext current(stream_->context());
    for (const std::span<std::byte> piece : data.pieces) {
      std::byte* host = memory_ + place;
      if (memory_ == nullptr) {
        bounce_.resize(std::max(bounce_.size(), piece.size()));
        host = bounce_.data();
      }
      if (read && memory_ == nullptr && !read_image(place, {host, piece.size()})) {
        return false;
      }
      const int error = read ? stream_->copy_to_device(piece.data(), host, piece.size())
                             : stream_->copy_to_host(host, piece.data(), piece.size());
      // The bounce buffer serves one piece at a time.
      if (error != 0 || (memory_ == nullptr && stream_->wait() != 0)) {
        return false;
      }
      if (!read && memory_ == nullptr && !write_image(place, {host, piece.size()})) {
        return false;
      }
      place += piece.size();
    }
    return stream_->wait() == 0;
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
