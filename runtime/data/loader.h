// Images into batches: an endless, shuffled sequence of samples, prepared by a thread while the trainer computes.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <stop_token>
#include <thread>
#include <vector>

#include "runtime/data/image_set.h"

namespace difuse::runtime {

/// A place in the sequence of samples: how many were handed out before it. Saved in checkpoints.
struct Cursor {
  std::uint64_t position = 0;
  bool operator==(const Cursor&) const = default;
};

struct LoaderOptions {
  std::int64_t batch = 1;
  std::uint64_t seed = 0;
  bool flip = false;  ///< Draw a horizontal flip for each sample; it is applied on the device.
  Cursor start;
};

/// Sample p is image shuffle_epoch(seed, p / count)[p % count]: each epoch is a permutation, epochs follow each other
/// without dropping a rest (a batch may straddle two), and the sequence depends neither on the batch size nor on what
/// was drawn before. Use from one thread.
class Loader {
 public:
  /// Errors: a set without images; fewer images than a batch; a batch below 1.
  Loader(ImageSet images, const LoaderOptions& options);

  /// Hands out the next batch and starts preparing the one after the next. Sizes: `pixels` [batch, H, W, C] uint8,
  /// `labels` [batch], or empty when they are not wanted, `flips` [batch] (1: mirror this image), or empty. Error when
  /// labels are asked for and the data has none.
  void next(std::span<std::uint8_t> pixels, std::span<std::int32_t> labels, std::span<std::uint8_t> flips);

  /// After the last batch that next() handed out; what is prepared ahead does not count.
  Cursor cursor() const { return consumed_; }

  /// Goes to any place of the sequence; from there it continues exactly as it would have.
  void set_cursor(Cursor cursor);

  /// Whole passes over the data behind cursor().
  std::uint64_t epoch() const { return consumed_.position / static_cast<std::uint64_t>(images_.count); }

  /// Seconds that next() has spent waiting for the thread, in all.
  double wait_seconds() const { return wait_seconds_; }

  const ImageSet& images() const { return images_; }
  std::int64_t batch() const { return options_.batch; }

 private:
  struct Slot {
    std::vector<std::uint8_t> pixels;
    std::vector<std::int32_t> labels;
    std::vector<std::uint8_t> flips;
  };

  void start(Cursor cursor);
  void prepare_ahead(const std::stop_token& stop, std::uint64_t position);
  void fill(Slot& slot, std::uint64_t position);

  ImageSet images_;
  LoaderOptions options_;
  Cursor consumed_;
  double wait_seconds_ = 0;
  std::size_t read_slot_ = 0;

  // The thread's own: the permutation of the epoch it is in.
  std::vector<std::int64_t> order_;
  std::uint64_t order_epoch_ = 0;

  std::array<Slot, 2> slots_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::size_t ready_ = 0;  // Slots filled and not handed out, guarded by mutex_.
  std::jthread thread_;    // Last: it stops before what it uses is destroyed.
};

}  // namespace difuse::runtime
