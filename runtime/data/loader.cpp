#include "runtime/data/loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "ir/error.h"
#include "runtime/data/shuffle.h"

namespace difuse::runtime {

Loader::Loader(ImageSet images, const LoaderOptions& options) : images_(std::move(images)), options_(options) {
  if (images_.count < 1 || images_.image_bytes() < 1) {
    throw Error("the data holds no image", "give a data set with at least one image (--data)");
  }
  if (options_.batch < 1) {
    throw Error(fmt::format("--batch {} is not a batch size", options_.batch), "give --batch 1 or more",
                ExitCode::wrong_usage);
  }
  if (images_.count < options_.batch) {
    throw Error(fmt::format("the data holds {} images, fewer than one batch of {}", images_.count, options_.batch),
                fmt::format("give --batch {} or less, or more images", images_.count), ExitCode::wrong_usage);
  }
  const auto count = static_cast<std::size_t>(images_.count);
  if (images_.pixels.size() != count * images_.image_bytes() ||
      (!images_.labels.empty() && images_.labels.size() != count)) {
    throw Error(fmt::format("the data contradicts itself: {} images, {} bytes of pixels, {} labels", images_.count,
                            images_.pixels.size(), images_.labels.size()));
  }
  for (Slot& slot : slots_) {
    slot.pixels.resize(options_.batch * images_.image_bytes());
    slot.labels.resize(images_.labels.empty() ? 0 : options_.batch);
    slot.flips.resize(options_.batch);
  }
  order_.resize(count);
  start(options_.start);
}

void Loader::set_cursor(Cursor cursor) {
  thread_ = {};  // Asks the thread to stop and joins it.
  start(cursor);
}

void Loader::start(Cursor cursor) {
  consumed_ = cursor;
  read_slot_ = 0;
  ready_ = 0;
  order_epoch_ = cursor.position / order_.size();
  thread_ =
      std::jthread([this, position = cursor.position](const std::stop_token& stop) { prepare_ahead(stop, position); });
}

void Loader::next(std::span<std::uint8_t> pixels, std::span<std::int32_t> labels, std::span<std::uint8_t> flips) {
  const auto batch = static_cast<std::size_t>(options_.batch);
  if (!labels.empty() && images_.labels.empty()) {
    throw Error("labels are needed, but the data has none",
                "put the label file beside the image file, or train without classes");
  }
  if (pixels.size() != slots_[0].pixels.size() || (!labels.empty() && labels.size() != batch) ||
      (!flips.empty() && flips.size() != batch)) {
    throw Error(fmt::format("a batch of {} images has {} bytes of pixels, not {}", batch, slots_[0].pixels.size(),
                            pixels.size()));
  }
  {
    std::unique_lock lock(mutex_);
    if (ready_ == 0) {
      const auto begin = std::chrono::steady_clock::now();
      changed_.wait(lock, [&] { return ready_ > 0; });
      wait_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
  }
  // The thread leaves a filled slot alone until ready_ says that it was handed out.
  const Slot& slot = slots_[read_slot_];
  std::copy(slot.pixels.begin(), slot.pixels.end(), pixels.begin());
  if (!labels.empty()) std::copy(slot.labels.begin(), slot.labels.end(), labels.begin());
  if (!flips.empty()) std::copy(slot.flips.begin(), slot.flips.end(), flips.begin());
  read_slot_ = (read_slot_ + 1) % slots_.size();
  consumed_.position += batch;
  {
    const std::scoped_lock lock(mutex_);
    --ready_;
  }
  changed_.notify_all();
}

void Loader::prepare_ahead(const std::stop_token& stop, std::uint64_t position) {
  shuffle_epoch(order_, options_.seed, static_cast<std::uint32_t>(order_epoch_));
  for (std::size_t write_slot = 0;; write_slot = (write_slot + 1) % slots_.size()) {
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [&] { return ready_ < slots_.size(); })) return;
      if (stop.stop_requested()) return;
    }
    fill(slots_[write_slot], position);
    position += static_cast<std::uint64_t>(options_.batch);
    {
      const std::scoped_lock lock(mutex_);
      ++ready_;
    }
    changed_.notify_all();
  }
}

void Loader::fill(Slot& slot, std::uint64_t position) {
  const auto bytes = static_cast<std::size_t>(images_.image_bytes());
  for (std::size_t i = 0; i < slot.flips.size(); ++i, ++position) {
    if (const std::uint64_t epoch = position / order_.size(); epoch != order_epoch_) {
      order_epoch_ = epoch;
      shuffle_epoch(order_, options_.seed, static_cast<std::uint32_t>(epoch));
    }
    const auto image = static_cast<std::size_t>(order_[position % order_.size()]);
    std::memcpy(&slot.pixels[i * bytes], &images_.pixels[image * bytes], bytes);
    if (!slot.labels.empty()) slot.labels[i] = images_.labels[image];
    slot.flips[i] = options_.flip && flip_sample(options_.seed, position) ? 1 : 0;
  }
}

}  // namespace difuse::runtime
