// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tutti/runtime/detail/paths.hpp"
#include "tutti/runtime/detail/stripe.hpp"
#include "tutti/runtime/detail/uri_text.hpp"
#include "tutti/runtime/error.hpp"

namespace tutti::runtime::detail {
namespace {

class StripedTarget final : public Target {
 public:
  StripedTarget(std::string name, Stripe stripe, std::uint64_t size, bool writable,
                std::vector<std::unique_ptr<Target>> shards)
      : Target(size, writable, true), name_(std::move(name)), stripe_(stripe), shards_(std::move(shards)) {}

  [[nodiscard]] const Stripe& stripe() const noexcept { return stripe_; }
  [[nodiscard]] Target* shard(std::uint32_t index) const noexcept { return shards_[index].get(); }

  [[nodiscard]] std::vector<Target*> shards() override {
    std::vector<Target*> shards;
    shards.reserve(shards_.size());
    for (const auto& shard : shards_) {
      shards.push_back(shard.get());
    }
    return shards;
  }

  [[nodiscard]] TargetInfo info() const override {
    TargetInfo info = Target::info();
    info.kind = "striped";
    info.path = name_;
    info.direct = true;
    for (const auto& shard : shards_) {
      info.shards.push_back(shard->info());
      info.direct = info.direct && info.shards.back().direct;
    }
    info.unit = stripe_.unit;
    info.rotation = stripe_.rotation;
    return info;
  }

 private:
  std::string name_;
  Stripe stripe_;
  std::vector<std::unique_ptr<Target>> shards_;
};

struct Group;

/// An operation on a striped target while its parts are under way.
struct Parent {
  IoOp op;
  Group* group = nullptr;
  std::atomic<std::uint32_t> remaining{0};
  std::mutex mutex;        ///< guards the next two
  std::uint64_t good = 0;  ///< bytes before the first failure
  std::int32_t status = 0;
};

/// All parents of one submit(), freed with the last of them.
struct Group {
  explicit Group(std::size_t count) : parents(std::make_unique<Parent[]>(count)), remaining(count) {}

  std::unique_ptr<Parent[]> parents;
  std::atomic<std::size_t> remaining;
};

/// How far into the parent's range a part begins. For a flush 0: all parts are alike.
std::uint64_t place_in(const Parent& parent, const IoOp& part) noexcept {
  return static_cast<std::uint64_t>(part.address - parent.op.address);
}

void note_failure(Parent& parent, const IoOp& part) noexcept {
  const std::uint64_t good = place_in(parent, part) + part.done;
  std::lock_guard lock(parent.mutex);
  if (parent.status == 0 || good < parent.good) {
    parent.good = good;
    parent.status = part.status;
  }
}

class StripedPath final : public DataPath, private CompletionSink {
 public:
  StripedPath(std::unique_ptr<DataPath> next, StripeDefaults defaults)
      : next_(std::move(next)), defaults_(std::move(defaults)) {}

  void start(CompletionSink& sink) override {
    sink_ = &sink;
    next_->start(*this);
  }

  std::unique_ptr<Target> open(const TargetUri& uri, bool writable) override {
    return uri.scheme == Scheme::kStriped ? open_striped(uri, writable) : next_->open(uri, writable);
  }

  void register_memory(Memory& memory) override { next_->register_memory(memory); }
  void unregister_memory(const Memory& memory) noexcept override { next_->unregister_memory(memory); }

  void submit(std::span<const IoOp> ops) override {
    std::size_t striped = 0;
    for (const IoOp& op : ops) {
      striped += as_striped(op) != nullptr ? 1 : 0;
    }
    if (striped == 0) {
      next_->submit(ops);
      return;
    }
    auto group = std::make_unique<Group>(striped);
    std::vector<IoOp> parts;
    parts.reserve(count_parts(ops));
    std::size_t used = 0;
    for (const IoOp& op : ops) {
      if (const StripedTarget* target = as_striped(op)) {
        Parent& parent = group->parents[used++];
        parent.op = op;
        parent.group = group.get();
        split(*target, parent, parts);
      } else {
        parts.push_back(op);
      }
    }
    // Parts can complete, and with the last of them the group can go, before submit() returns; only when it
    // throws has it taken none.
    Group* const flying = group.release();
    try {
      next_->submit(parts);
    } catch (...) {
      delete flying;
      throw;
    }
  }

  int admit(const IoOp& op) noexcept override { return next_->admit(op); }

  void withdraw(const OpFilter& filter, std::int32_t status) noexcept override {
    next_->withdraw(
        [&filter](const IoOp& op) { return filter(op.part ? static_cast<const Parent*>(op.batch)->op : op); },
        status);
  }

  void shutdown() noexcept override { next_->shutdown(); }
  DataPathCaps caps() const override {
    DataPathCaps caps = next_->caps();
    caps.features_used["striping"] =
        "a request on a striped target counts once in max_in_flight and is one operation per striping unit "
        "to "
        "the data path";
    return caps;
  }
  void set_write_policy(const WritePolicy& policy) noexcept override { next_->set_write_policy(policy); }
  std::uint64_t direct_fallbacks() const noexcept override { return next_->direct_fallbacks(); }
  std::uint64_t step_downs() const noexcept override { return next_->step_downs(); }

 private:
  static const StripedTarget* as_striped(const IoOp& op) noexcept {
    return op.target->composite() ? static_cast<const StripedTarget*>(op.target) : nullptr;
  }

  static std::size_t count_parts(std::span<const IoOp> ops) noexcept {
    std::size_t count = 0;
    for (const IoOp& op : ops) {
      const StripedTarget* target = as_striped(op);
      if (target == nullptr) {
        ++count;
      } else {
        count += op.direction == Direction::kFlush ? target->stripe().shards
                                                   : most_pieces(target->stripe(), op.length);
      }
    }
    return count;
  }

  static void split(const StripedTarget& target, Parent& parent, std::vector<IoOp>& parts) {
    const std::size_t before = parts.size();
    IoOp part = parent.op;
    part.batch = &parent;
    part.part = true;
    if (part.direction == Direction::kFlush) {
      for (std::uint32_t shard = 0; shard < target.stripe().shards; ++shard) {
        part.target = target.shard(shard);
        parts.push_back(part);
      }
    } else {
      for_each_piece(target.stripe(), parent.op.target_offset, parent.op.length,
                     [&](const StripePiece& piece) {
                       part.target = target.shard(piece.shard);
                       part.target_offset = piece.shard_offset;
                       part.address = parent.op.address + (piece.target_offset - parent.op.target_offset);
                       part.length = piece.length;
                       parts.push_back(part);
                     });
    }
    parent.remaining.store(static_cast<std::uint32_t>(parts.size() - before), std::memory_order_relaxed);
  }

  // Runs of operations that are none of ours go on as they came.
  void complete(std::span<const IoOp> ops) noexcept override {
    std::size_t begin = 0;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      if (!ops[i].part) {
        continue;
      }
      forward(ops.subspan(begin, i - begin));
      begin = i + 1;
      complete_part(ops[i]);
    }
    forward(ops.subspan(begin));
  }

  void forward(std::span<const IoOp> ops) noexcept {
    if (!ops.empty()) {
      sink_->complete(ops);
    }
  }

  void complete_part(const IoOp& part) noexcept {
    Parent& parent = *static_cast<Parent*>(part.batch);
    if (part.status != 0) {
      note_failure(parent, part);
    }
    if (parent.remaining.fetch_sub(1, std::memory_order_acq_rel) != 1) {
      return;
    }
    parent.op.status = parent.status;
    parent.op.done = parent.status != 0 ? parent.good : parent.op.length;
    sink_->complete({&parent.op, 1});
    Group* const group = parent.group;
    if (group->remaining.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      delete group;
    }
  }

  std::unique_ptr<Target> open_striped(const TargetUri& uri, bool writable) {
    const std::vector<std::string>& roots = uri.roots.empty() ? defaults_.roots : uri.roots;
    const std::string name = "striped://" + uri.path;
    if (roots.empty()) {
      throw InvalidUri("target '" + name + "': it names no roots, and this runtime has none of its own");
    }
    const Stripe stripe{uri.unit != 0 ? uri.unit : defaults_.unit, static_cast<std::uint32_t>(roots.size()),
                        uri.rotation};
    if (stripe.rotation >= stripe.shards) {
      throw InvalidUri("target '" + name + "': rot=" + std::to_string(stripe.rotation) +
                       " must be less than the number of roots, " + std::to_string(stripe.shards));
    }
    std::vector<std::unique_ptr<Target>> shards;
    std::vector<std::uint64_t> sizes;
    for (const std::string& root : roots) {
      shards.push_back(next_->open(shard_on(root, uri, name), writable));
      sizes.push_back(shards.back()->size());
    }
    require_different(shards, name);
    const std::uint64_t held = striped_size(stripe, sizes);
    if (uri.size > held) {
      throw InvalidUri("target '" + name + "': size=" + std::to_string(uri.size) + ", but its shards hold " +
                       std::to_string(held) + " bytes");
    }
    const std::uint64_t size = uri.size != 0 ? uri.size : held;
    return std::make_unique<StripedTarget>(uri.path, stripe, size, writable, std::move(shards));
  }

  static TargetUri shard_on(const std::string& root, const TargetUri& uri, const std::string& name) {
    if (root.starts_with(kNvmeRoot)) {
      TargetUri shard = parse_target_uri(root);
      if (shard.offset != 0 || shard.size != 0) {
        throw InvalidUri("target '" + name + "': the root " + root +
                         " has keys of its own; offset and size are the striped target's");
      }
      shard.offset = uri.offset;
      return shard;
    }
    if (uri.offset != 0) {
      throw InvalidUri("target '" + name + "': offset is for roots that are nvme://name/nsid, and " + root +
                       " is a folder");
    }
    return {Scheme::kFile, root + (root.ends_with('/') ? "" : "/") + uri.path};
  }

  /// Two folders can be one, through a mount or a link above them; their shards would overwrite each other.
  static void require_different(const std::vector<std::unique_ptr<Target>>& shards, const std::string& name) {
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::string> seen;
    for (const auto& shard : shards) {
      const TargetInfo info = shard->info();
      const auto [place, is_new] = seen.emplace(std::pair(info.root, info.inode), info.path);
      if (!is_new) {
        throw InvalidUri("target '" + name + "': the shards " + place->second + " and " + info.path +
                         " are one and the same file");
      }
    }
  }

  std::unique_ptr<DataPath> next_;
  const StripeDefaults defaults_;
  CompletionSink* sink_ = nullptr;
};

}  // namespace

std::unique_ptr<DataPath> make_striped_path(std::unique_ptr<DataPath> next, StripeDefaults defaults) {
  return std::make_unique<StripedPath>(std::move(next), std::move(defaults));
}

}  // namespace tutti::runtime::detail
