// Convolutions on Hopper: images [n, y, x, c], filters [k, r, s, c] in bf16, or in f32 that was rounded to tf32; sums in
// fp32.
//
// As a matrix product: rows are 64 output channels (the filter), columns are pixels (the image), and the sum runs over
// the chunks of 64 input channels (32 in f32: 128 bytes of a pixel), over the taps (r, s) of the filter, and over the
// channels of the chunk, in that order. A tile of pixels is 8 wide and `rows` high, in each of `images` images; for a
// filter of 3 x 3 its input is 10 wide and rows + 2 high: the halo. Each halo is loaded once and read once per tap: the
// pixels that tap (r, s) meets are those of the halo from pixel (r, s) on, so the tap's matrix is the same shared
// memory, described from 10 r + s rows further on. What lies outside the image the copy engine fills with zeros, which
// is the border.
//
// Images of 4 or 2 pixels' width lie side by side, `abreast` of them, in the 8 columns of a tile, and a row of all of
// its images follows the row above. From one tap to the next such a row's pixels are no longer neighbours. So the halo
// is loaded once for each column of taps, that much further on and no wider than the image: the pixels that tap (r, s)
// meets are those of copy s from row r on, and all of the tile's in one piece.
//
// With a stride of two a tile's neighbours in a row meet every second pixel. So the halo is two boxes, its even columns
// and its odd ones; rows of all are there, and every second one is described. Of images abreast, where that would be
// several of them, even and odd rows are boxes of their own.
//
// A block is a producer and one to three consumers. The producer only starts copies: halos and taps of the filter into
// two rings of slots. The consumers, warpgroups of 128 threads, multiply, each into a tile of its own, add what follows
// the convolution, and hand the tile to the copy engine. Each slot has two barriers: `full`, for the bytes of its copy,
// and `empty`, for the warps that have read it. Blocks stay: each computes one set of tiles after the other, a tile for
// each consumer, all of the same 64 output channels.
//
// What follows may read another tensor like the result, the operand. Its tile comes through the ring of halos, behind
// those of the convolution's tile, while the consumer still multiplies; the result leaves from the same slot. Without
// an operand it leaves from that of the last halo. The 64 channels of a result in f32 are two parts, each 128 bytes of
// a pixel and in a slot of its own, as an operand's are. Without an operand the second part's slot comes from the ring
// likewise, but nothing is copied to it. Beside the operand there may be another of bytes, a mask: its tile, 64 bytes of
// a pixel, comes with the operand's and lies behind it.
//
// Where all taps of the filter fit into shared memory, they are loaded once per block, and the consumers take turns:
// one multiplies while the others store their tiles. Elsewhere all consumers meet each tap while it passes through the
// ring.
//
// The gradient of the image is the convolution of the result's gradient with the turned filter: taps in the opposite
// order, input and output channels exchanged. It reads the filter where it lies: its 64 output channels then run along
// the rows of a tap in shared memory, and the sum runs down its columns. (In bf16: for tf32 the tensor cores know no
// such rows.)
//
// The consumers may also share one tile of pixels, each with 64 output channels of its own (Tile::shares_halo): its
// halo is then loaded, and transformed, once for 128 or 192 of them, and a tap's slot holds the taps of all. A halo is
// dead only when all have read it, and one result alone would fit there: so each consumer has a slot of its own for its
// results, to which it fetches the operand itself before it multiplies. They need no turns: a consumer goes on as far
// as the ring of halos reaches while the others store.
//
// What is computed of the image before it is multiplied, the prologue, a further role does in shared memory
// (conv_prologue.cuh): the transformers, one or two warpgroups between the producer and the consumers. A slot of a halo
// then has a third barrier: `ready`, for the warps that have transformed it.
#pragma once
#include "codegen/cuda/device/ptx_sm90.cuh"
#include "codegen/cuda/device/ring.cuh"
#include "codegen/cuda/device/vector.cuh"

namespace conv {

/// The result is height x width x outputs; a filter of 1 x 1 may see all pixels of all images as one line: as many
/// images of one pixel. `is_turned`: the filter lies in memory as [inputs, filter, filter, outputs], its last tap being
/// the first that is met. `reads_operand`: what follows the convolution does. `has_prologue`: something comes before
/// it. `first_inputs`: where there are two images, one behind the other in each pixel, the channels of the first, a
/// multiple of a chunk's. `statistics`: numbers that the transformers make of each image before. `has_image_sums`: they
/// sum what the prologue makes. `Element`: bf16 or f32, of the image, the filter, the operand and the result. `stride`:
/// 1 or 2. `reads_mask`: what follows the convolution reads a mask beside the operand.
template <int height_, int width_, int inputs_, int outputs_, int filter_, int pad_, bool is_turned_ = false,
          bool reads_operand_ = false, bool has_prologue_ = false, int first_inputs_ = inputs_,
          int statistics_ = 0, bool has_image_sums_ = false, class Element_ = bf16, int stride_ = 1,
          bool reads_mask_ = false>
struct Problem {
  using Element = Element_;
  static constexpr int chunk = 128 / static_cast<int>(sizeof(Element));  ///< Channels.
  static constexpr int parts = 64 / chunk;                               ///< Of a result's 64 channels.
  static constexpr int height = height_, width = width_, inputs = inputs_, outputs = outputs_, filter = filter_;
  static constexpr int pad = pad_, stride = stride_, taps = filter * filter, chunks = (inputs + chunk - 1) / chunk;
  static constexpr bool is_turned = is_turned_, reads_operand = reads_operand_, reads_mask = reads_mask_;
  static constexpr bool has_prologue = has_prologue_;
  static constexpr int statistics = statistics_;
  static constexpr bool has_finish = statistics > 0, has_image_sums = has_image_sums_;
  static constexpr int first_inputs = first_inputs_;
  static_assert(first_inputs == inputs || first_inputs % chunk == 0);
  static_assert(sizeof(Element) == 2 || (!is_turned && !has_prologue && !reads_mask));
  static_assert(stride == 1 || (!is_turned && !has_prologue));
  static_assert(reads_operand || !reads_mask);
};

/// `blocks`: of a processor at once. With several, one multiplies while another begins or ends, and the next kernel may
/// begin before this one has ended. `shares_halo`: the consumers have one tile of pixels, not a tile each. `abreast`:
/// images side by side, 1, 2 or 4, in place of each of `images`. `transformers`: warpgroups, where there is a prologue.
template <int rows_, int images_, int halo_slots_, int tap_slots_, int blocks_ = 1, int consumers_ = 2,
          bool shares_halo_ = false, int abreast_ = 1, int transformers_ = 0>
struct Tile {
  static constexpr int transformers = transformers_;
  static constexpr int rows = rows_, images = images_, halo_slots = halo_slots_, tap_slots = tap_slots_;
  static constexpr int blocks = blocks_, consumers = consumers_;
  static constexpr bool shares_halo = shares_halo_;
  static constexpr int abreast = abreast_, width = 8 / abreast;  ///< Of an image's part.
};

template <class Problem_, class Tile_>
struct Layout {
  using Problem = Problem_;
  using Tile = Tile_;
  static constexpr bool is_line = Problem::filter == 1 && Problem::height * Problem::width == 1;
  static constexpr int consumers = Tile::consumers, warpgroup = 128;
  static constexpr int halos = Tile::shares_halo ? 1 : consumers;  ///< Tiles of pixels of a work.
  static constexpr int readers = consumers / halos;                ///< Of each.
  /// Of a consumer, for a halo that it gives back: one of each warp. In f32, whose results pass through the slots by
  /// ordinary stores, all threads arrive: racecheck orders by a barrier only what those did that arrive at it.
  static constexpr int arrivals = Problem::parts == 2 ? warpgroup : 4;
  /// Where several consumers have the processor to themselves, the producer is a warpgroup too, whose registers go to
  /// them. Beside transformers, who want as many, it is a warp.
  static constexpr bool shares_registers = Tile::blocks == 1 && consumers > 1 && !Problem::has_prologue;
  /// Two warpgroups of transformers work on halos in turns, so that one's loads are hidden by the other's arithmetic.
  /// Beside three consumers there is room for one, as there is beside one that holds a lot.
  static constexpr int transformers = Tile::transformers;
  static_assert((transformers > 0) == Problem::has_prologue);
  static constexpr int producer_thread = (consumers + transformers) * warpgroup;
  static constexpr int threads = producer_thread + (shares_registers ? warpgroup : 32);
  static constexpr int pixels = 8 * Tile::rows * Tile::images;  ///< Of a consumer's tile.
  static constexpr int tiles_x = (Problem::width + Tile::width - 1) / Tile::width;
  static constexpr int tiles_y = (Problem::height + Tile::rows - 1) / Tile::rows;
  static constexpr int work_outputs = 64 * readers;
  static constexpr int output_tiles = (Problem::outputs + work_outputs - 1) / work_outputs;

  static constexpr int pixel_bytes = 128;  ///< A chunk of channels.
  static constexpr bool is_dense = Tile::abreast > 1;  ///< The pixels that a tap meets are one piece.
  static constexpr int products = is_dense ? 1 : Tile::images;  ///< Instructions for all pixels of a tile.
  /// Boxes of a halo.
  static constexpr int boxes = (is_dense ? Problem::filter : 1) * Problem::stride;
  static constexpr int border = (Problem::filter - 1) / Problem::stride;  ///< Of what has every second pixel.
  static constexpr int box_rows =
      is_dense ? Tile::rows + border : (Tile::rows - 1) * Problem::stride + Problem::filter;
  /// From a row of a box to the next, from an image to the next, which images abreast have in a row, and of a box.
  static constexpr int halo_pitch = (is_dense ? 8 * Tile::images : 8 + border) * pixel_bytes;
  static constexpr int halo_image = box_rows * halo_pitch, box_bytes = (is_dense ? 1 : Tile::images) * halo_image;
  static constexpr int box_pitch = (box_bytes + 1023) / 1024 * 1024;  ///< From a box to the next.
  static constexpr int halo_bytes = boxes * box_bytes;
  /// A tile lies as rows of 8 pixels: so many on is an image's next row, and the same row of the next image.
  static constexpr int row_step = is_dense ? Tile::images : 1, image_step = is_dense ? 1 : Tile::rows;
  static constexpr int own_tap_bytes = 64 * pixel_bytes;  ///< Of a consumer.
  static constexpr int tap_bytes = readers * own_tap_bytes, tile_bytes = pixels * pixel_bytes;
  static constexpr bool is_resident = Tile::tap_slots == Problem::chunks * Problem::taps;
  static constexpr bool passes_operand = Problem::reads_operand && !Tile::shares_halo;  ///< Through the ring of halos.
  static constexpr int mask_pitch = 64, mask_bytes = Problem::reads_mask ? pixels * mask_pitch : 0;
  static constexpr int operand_bytes = tile_bytes + mask_bytes;
  static constexpr int halo_slot =
      ((passes_operand && operand_bytes > boxes * box_pitch ? operand_bytes : boxes * box_pitch) + 1023) / 1024 * 1024;
  /// Slots that a tile takes from the ring of halos for what is no halo: parts of the operand, or of the result.
  static constexpr int more_slots = Tile::shares_halo ? 0 : Problem::parts - (Problem::reads_operand ? 0 : 1);
  static constexpr int copies = Problem::chunks + more_slots;  ///< Of a tile, to its slots.
  static_assert(Problem::parts == 1 || !Tile::shares_halo);
  static_assert(!is_dense || (!is_line && !Problem::has_prologue));

  static constexpr int taps_at = Tile::halo_slots * halo_slot, results_at = taps_at + Tile::tap_slots * tap_bytes;
  static constexpr int barriers_at = results_at + (Tile::shares_halo ? consumers * operand_bytes : 0);
  static constexpr int halo_barriers = (Problem::has_prologue ? 3 : 2) * Tile::halo_slots;
  static constexpr int operand_barriers = Problem::reads_operand && Tile::shares_halo ? consumers : 0;
  static constexpr int barriers = halo_barriers + 2 * Tile::tap_slots + operand_barriers;
  static constexpr int statistics_at = (barriers_at + barriers * 8 + 15) / 16 * 16;
  static constexpr int bytes = statistics_at + transformers * Tile::images * Problem::statistics * 4;

  // A consumer gives a halo or a tap back when it has begun with the next one.
  static constexpr int least_halo_slots =
      is_resident ? halos + 1 : halos * (Problem::chunks > 1 || Problem::parts > 1 ? 2 : 1);
  static_assert(Tile::halo_slots >= least_halo_slots);
  static_assert(is_resident || (Tile::halo_slots % halos == 0 && Tile::tap_slots >= 2));
};

/// The first pixel and channel of a consumer's tile.
struct Origin {
  int output, image, y, x;
};

/// Work `work` is a set of tiles of pixels, one for each consumer, and 64 output channels, or one tile and 64 output
/// channels for each consumer; neighbours share pixels.
template <class L>
__device__ __forceinline__ Origin origin_of(int work, int consumer) {
  const int set = quotient<L::output_tiles>(work), tile = L::Tile::shares_halo ? set : set * L::consumers + consumer;
  const int output = remainder_of<L::output_tiles>(work) * L::work_outputs + (L::Tile::shares_halo ? consumer * 64 : 0);
  if constexpr (L::is_line) {
    return {output, 0, 0, tile * L::pixels};
  } else {
    const int line = quotient<L::tiles_x>(tile);
    return {output, quotient<L::tiles_y>(line) * (L::Tile::images * L::Tile::abreast),
            remainder_of<L::tiles_y>(line) * L::Tile::rows, remainder_of<L::tiles_x>(tile) * L::Tile::width};
  }
}

/// Where box `i` of a halo begins in it.
struct Box {
  int x, y;
};
template <class L>
__device__ __forceinline__ Box box_of(int i) {
  constexpr int stride = L::Problem::stride;
  return L::is_dense ? Box{i / stride, i % stride} : Box{i, 0};
}
/// Where in the halo is what tap (r, s) meets of the tile's first pixel, in bytes.
template <class L>
__device__ __forceinline__ int tap_at(int r, int s) {
  constexpr int stride = L::Problem::stride;
  if constexpr (L::is_dense) return (s * stride + r % stride) * L::box_pitch + r / stride * L::halo_pitch;
  return s % stride * L::box_pitch + r * L::halo_pitch + s / stride * L::pixel_bytes;
}

/// Coordinates in a tensor map, behind the channel. A box of images abreast holds row after row of them all.
struct Place {
  int first, second, third;
};
template <class L>
__device__ __forceinline__ Place place_of(int x, int y, int image) {
  return {x, L::is_dense ? image : y, L::is_dense ? y : image};
}
template <class L>
__device__ __forceinline__ Place place_of(const Origin& at) {
  return place_of<L>(at.x, at.y, at.image);
}

/// A block's works: every so-manieth from the first one on.
struct Works {
  int begin, end, step;
};
/// Blocks take turns: those that run together read what lies together.
__device__ __forceinline__ Works works_in_turns(int works, unsigned blocks) {
  return {static_cast<int>(blockIdx.x), works, static_cast<int>(blocks)};
}
/// A block's works, `share` or what is left, are neighbours, mostly of one image: where its statistics are made, that is
/// done once for all of them. With the taps resident, all are of the same output channels.
template <class L>
__device__ __forceinline__ Works works_in_a_row(int works, unsigned blocks, int share) {
  constexpr int columns = L::is_resident ? L::output_tiles : 1;
  const int block = static_cast<int>(blockIdx.x), begin = quotient<columns>(block) * share * columns;
  const bool is_last = block + columns >= static_cast<int>(blocks);
  return {begin + remainder_of<columns>(block), is_last ? works : min(begin + share * columns, works), columns};
}

/// The block's shared memory.
template <class L>
struct Shared {
  unsigned char* start;

  __device__ __forceinline__ unsigned char* halo(int slot) const { return start + slot * L::halo_slot; }
  __device__ __forceinline__ unsigned char* tap(int slot) const { return start + L::taps_at + slot * L::tap_bytes; }
  /// A consumer's own slot, where they share halos.
  __device__ __forceinline__ unsigned char* result(int consumer) const {
    return start + L::results_at + consumer * L::operand_bytes;
  }
  __device__ __forceinline__ Barrier* halo_full(int slot) const { return barriers() + slot; }
  __device__ __forceinline__ Barrier* halo_empty(int slot) const { return barriers() + L::Tile::halo_slots + slot; }
  /// For the consumers.
  __device__ __forceinline__ Barrier* halo_ready(int slot) const {
    return barriers() + (L::Problem::has_prologue ? 2 * L::Tile::halo_slots : 0) + slot;
  }
  __device__ __forceinline__ Barrier* tap_full(int slot) const { return barriers() + L::halo_barriers + slot; }
  __device__ __forceinline__ Barrier* tap_empty(int slot) const { return tap_full(L::Tile::tap_slots + slot); }
  /// Of a consumer's own slot.
  __device__ __forceinline__ Barrier* operand_full(int consumer) const {
    return tap_full(2 * L::Tile::tap_slots + consumer);
  }

  /// By all threads, once.
  __device__ __forceinline__ void init() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < L::Tile::halo_slots; ++i) {
        barrier_init(halo_full(i), 1);
        barrier_init(halo_empty(i), L::arrivals * L::readers);
        if constexpr (L::Problem::has_prologue) barrier_init(halo_ready(i), 4);  // Of one transformer.
      }
      for (int i = 0; i < L::Tile::tap_slots; ++i) {
        barrier_init(tap_full(i), 1);
        barrier_init(tap_empty(i), 4 * L::consumers);
      }
      for (int i = 0; i < L::operand_barriers; ++i) barrier_init(operand_full(i), 1);
      barrier_init_done();
    }
    __syncthreads();
  }

 private:
  __device__ __forceinline__ Barrier* barriers() const { return reinterpret_cast<Barrier*>(start + L::barriers_at); }
};

template <class L>
__device__ __forceinline__ bool is_producer() {
  return threadIdx.x >= L::producer_thread;
}
template <class L>
__device__ __forceinline__ bool is_transformer() {
  return threadIdx.x >= L::consumers * L::warpgroup;  // And no producer.
}

/// By all threads of the producer or of the consumers: 128 * 40 + 256 * 232 registers are those that 384 threads begin
/// with, 128 * 32 + 384 * 160 those of 512.
template <class L, bool producer>
__device__ __forceinline__ void share_registers() {
  if constexpr (L::shares_registers) {
    if constexpr (producer) {
      give_registers<L::consumers == 2 ? 40 : 32>();
    } else {
      take_registers<L::consumers == 2 ? 232 : 160>();
    }
  }
}

/// A copy to a slot of halos: whose (the first consumer's, where they share it), and which of its tile's; the last are
/// the operand where it passes through the ring.
struct Copy {
  int consumer, number;
};
/// Copy `i` of a set of tiles, in the order in which slots are filled.
template <class L>
__device__ __forceinline__ Copy copy_of(int i) {
  if constexpr (L::is_resident) return {quotient<L::copies>(i), remainder_of<L::copies>(i)};
  return {remainder_of<L::halos>(i), quotient<L::halos>(i)};
}

/// One thread fills the rings, in the order in which the consumers read them.
template <class L>
class Producer {
 public:
  using Problem = typename L::Problem;
  using Tile = typename L::Tile;

  /// `operand`, `second`, the other image, and `mask`: null where there is none.
  __device__ __forceinline__ Producer(unsigned char* shared, const TensorMap& image, const TensorMap& filter,
                                      const TensorMap* operand = nullptr, const TensorMap* second = nullptr,
                                      const TensorMap* mask = nullptr)
      : shared_{shared}, image_(image), filter_(filter), operand_(operand), second_(second), mask_(mask) {}

  /// The first taps, as many as there is room for. Another producer then goes on.
  __device__ __forceinline__ void begin(const Works& works) {
    if (works.begin >= works.end) return;
    const Origin at = origin_of<L>(works.begin, 0);
#pragma unroll 1
    for (int i = 0; i < kFirstTaps; ++i) load_tap(at, quotient<Problem::taps>(i), remainder_of<Problem::taps>(i));
  }

  __device__ __forceinline__ void produce(const Works& works, bool has_begun) {
    if (has_begun) begun_ = kFirstTaps, tap_.advance(kFirstTaps);
    bool has_taps = false;
#pragma unroll 1
    for (int work = works.begin; work < works.end; work += works.step) {
      if constexpr (L::is_resident) {
#pragma unroll 1
        for (int i = 0; i < L::halos * L::copies; ++i) {
          load(origin_of<L>(work, i / L::copies), i % L::copies);
          if (has_taps) continue;
          has_taps = true;
#pragma unroll 1
          for (int chunk = 0; chunk < Problem::chunks; ++chunk) load_taps(origin_of<L>(work, 0), chunk);
        }
        const int next = work + works.step;
        if (next < works.end) prefetch_operand(next);
      } else {
#pragma unroll 1
        for (int copy = 0; copy < L::copies; ++copy) {
#pragma unroll 1
          for (int i = 0; i < L::halos; ++i) load(origin_of<L>(work, i), copy);
          if (copy == 0) prefetch_operand(work);
          if (copy < Problem::chunks) load_taps(origin_of<L>(work, 0), copy);
        }
      }
    }
  }

 private:
  static constexpr int kTaps = Problem::chunks * Problem::taps;
  static constexpr int kFirstTaps = Tile::tap_slots < kTaps ? Tile::tap_slots : kTaps;

  /// Brings it into L2: its slot may become free late. Not before the halos that the first products wait for.
  __device__ __forceinline__ void prefetch_operand(int work) {
    if constexpr (L::passes_operand) {
      for (int i = 0; i < L::consumers; ++i) {
        const Origin at = origin_of<L>(work, i);
        const Place place = place_of<L>(at);
#pragma unroll
        for (int part = 0; part < Problem::parts; ++part) {
          tensor_prefetch(*operand_, at.output + part * Problem::chunk, place.first, place.second, place.third);
        }
        if constexpr (Problem::reads_mask) tensor_prefetch(*mask_, at.output, place.first, place.second, place.third);
      }
    }
  }
  /// The tile's next copy: the halo of a chunk, and last the operand's parts, or nothing.
  __device__ __forceinline__ void load(const Origin& at, int copy) {
    barrier_wait(shared_.halo_empty(halo_.slot), halo_.parity ^ 1);
    Barrier* full = shared_.halo_full(halo_.slot);
    if (L::passes_operand && copy >= Problem::chunks) {
      const int part = Problem::parts == 1 ? 0 : copy - Problem::chunks;
      const Place place = place_of<L>(at);
      barrier_arrive_expecting(full, L::operand_bytes);
      unsigned char* const to = shared_.halo(halo_.slot);
      tensor_load(to, *operand_, full, at.output + part * Problem::chunk, place.first, place.second, place.third);
      if constexpr (Problem::reads_mask) {
        tensor_load(to + L::tile_bytes, *mask_, full, at.output, place.first, place.second, place.third);
      }
    } else if (L::more_slots > 0 && copy >= Problem::chunks) {
      barrier_arrive(full);
    } else {
      barrier_arrive_expecting(full, L::halo_bytes);
      const int channel = copy * Problem::chunk;
      const bool is_first = Problem::first_inputs == Problem::inputs || channel < Problem::first_inputs;
#pragma unroll
      for (int i = 0; i < L::boxes; ++i) {
        const Box box = box_of<L>(i);
        const Place place = place_of<L>(at.x * Problem::stride - Problem::pad + box.x,
                                        at.y * Problem::stride - Problem::pad + box.y, at.image);
        tensor_load(shared_.halo(halo_.slot) + i * L::box_pitch, is_first ? image_ : *second_, full,
                    channel - (is_first ? 0 : Problem::first_inputs), place.first, place.second, place.third);
      }
    }
    halo_.advance();
  }
  __device__ __forceinline__ void load_taps(const Origin& at, int chunk) {
#pragma unroll 1
    for (int tap = 0; tap < Problem::taps; ++tap) {
      if (begun_ > 0) {
        --begun_;
      } else {
        load_tap(at, chunk, tap);
      }
    }
  }
  __device__ __forceinline__ void load_tap(const Origin& at, int chunk, int tap) {
    barrier_wait(shared_.tap_empty(tap_.slot), tap_.parity ^ 1);
    Barrier* full = shared_.tap_full(tap_.slot);
    barrier_arrive_expecting(full, L::tap_bytes);
#pragma unroll
    for (int i = 0; i < L::readers; ++i) {
      unsigned char* const to = shared_.tap(tap_.slot) + i * L::own_tap_bytes;
      const int output = at.output + i * 64;
      if constexpr (Problem::is_turned) {
        tensor_load(to, filter_, full, output, Problem::taps - 1 - tap, chunk * 64);
      } else {
        tensor_load(to, filter_, full, chunk * Problem::chunk, tap, output);
      }
    }
    tap_.advance();
  }

  const Shared<L> shared_;
  const TensorMap& image_;
  const TensorMap& filter_;
  const TensorMap* const operand_;
  const TensorMap* const second_;
  const TensorMap* const mask_;
  RingPlace<Tile::halo_slots> halo_;
  RingPlace<Tile::tap_slots> tap_;
  int begun_ = 0;  ///< Taps that `begin` has loaded and `produce` has not come to.
};

/// 128 threads that compute one tile after the other.
template <class L>
class Consumer {
 public:
  using Problem = typename L::Problem;
  using Tile = typename L::Tile;

  __device__ __forceinline__ explicit Consumer(unsigned char* shared)
      : shared_{shared}, number_(static_cast<int>(threadIdx.x) / L::warpgroup) {
    if constexpr (!Tile::shares_halo) halo_.advance(number_ * (L::is_resident ? L::copies : 1));
    if (takes_turns && number_ == L::consumers - 1) named_barrier_arrive(kTurn, 2 * L::warpgroup);  // 0 is the first.
  }

  /// The next tile: what it reads of other tensors may be fetched before it multiplies.
  __device__ __forceinline__ void start(int work) { origin_ = origin_of<L>(work, number_); }
  /// Where halos are shared: the tile's operand, and its mask, once their slot is free.
  __device__ __forceinline__ void fetch_operand(const TensorMap& operand, const TensorMap* mask = nullptr) {
    if (threadIdx.x % L::warpgroup != 0) return;
    tensor_store_wait_read<0>();
    Barrier* full = shared_.operand_full(number_);
    const Place place = place_of<L>(origin_);
    barrier_arrive_expecting(full, L::operand_bytes);
    tensor_load(result_slot(0), operand, full, origin_.output, place.first, place.second, place.third);
    if constexpr (Problem::reads_mask) {
      tensor_load(result_slot(0) + L::tile_bytes, *mask, full, origin_.output, place.first, place.second, place.third);
    }
  }

  /// The tile's convolution, before anything is added; and the operand has come, and all of the result has its slots.
  __device__ __forceinline__ void multiply() {
    if constexpr (takes_turns) named_barrier_sync(kTurn + number_, 2 * L::warpgroup);
    if constexpr (L::is_resident) tap_ = {};
#pragma unroll
    for (auto& sums : sums_) {
      if constexpr (starts_afresh) {
        multiply_fresh_registers(sums);
      } else {
#pragma unroll
        for (float& sum : sums) sum = 0.0f;
        multiply_registers(sums);
      }
    }
    constexpr int rest = Problem::inputs % Problem::chunk, whole = Problem::inputs / Problem::chunk;
#pragma unroll 1
    for (int chunk = 0; chunk < whole; ++chunk) add_chunk<4>(chunk == 0);
    if constexpr (rest > 0) add_chunk<(rest + kStep - 1) / kStep>(whole == 0);
    RingPlace<Tile::halo_slots> more[Problem::parts];
#pragma unroll
    for (int i = 0; i < L::more_slots; ++i) {
      more[i] = halo_;
      advance_halo();
    }
    if constexpr (takes_turns) {
      // Another consumer may have a slot next, and can tell its copy only from the one before: that must be complete.
#pragma unroll
      for (int i = 0; i < L::more_slots; ++i) barrier_wait(shared_.halo_ready(more[i].slot), more[i].parity);
      halo_.advance((L::consumers - 1) * L::copies);  // The other consumers'.
      named_barrier_arrive(kTurn + (number_ + 1) % L::consumers, 2 * L::warpgroup);
    }
    multiply_wait<0>();
#pragma unroll
    for (auto& sums : sums_) multiply_registers(sums);
    if (!L::is_resident) arrive(shared_.tap_empty(last_tap_));
    if constexpr (L::passes_operand || Tile::shares_halo) {
      give_back(last_halo_);
    } else {
      results_[0] = last_halo_;
    }
#pragma unroll
    for (int i = 0; i < L::more_slots; ++i) {
      results_[Problem::parts - L::more_slots + i] = more[i].slot;
      if constexpr (!takes_turns) barrier_wait(shared_.halo_ready(more[i].slot), more[i].parity);
    }
    if constexpr (Problem::reads_operand && Tile::shares_halo) {
      barrier_wait(shared_.operand_full(number_), operand_parity_);
      operand_parity_ ^= 1;
    }
  }

  // What follows the products goes through the tile two rows at a time, so that few values are in work at once:
  // start_rows, then for each `row`, an even one, of each image read_operand and round_rows where they are wanted, and
  // stage_rows.

  __device__ __forceinline__ void start_rows() {
    // All warps have read the halo, or the engine the last results. Of the operand each reads what it then writes, and
    // no more.
    if constexpr (!Problem::reads_operand) {
      if (Tile::shares_halo && threadIdx.x % L::warpgroup == 0) tensor_store_wait_read<0>();
      named_barrier_sync(kOwn + number_, L::warpgroup);
    }
    if constexpr (Problem::parts == 2) {
      // Two warps share a part. Of a pair of pixels this thread has a channel of four, 16 bytes, and that 8 further on.
      const int pixel = this_lane() % 4 * 2, chunk = warp() % 2 * 4 + this_lane() / 16;
      const unsigned row = shared_address(warp() < 2 ? result_slot(0) : result_slot(1)) + pixel * L::pixel_bytes;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          floats_[half * 2 + x] =
              row + x * L::pixel_bytes + ((chunk + half * 2) ^ (pixel + x)) * 16 + this_lane() / 4 % 4 * 4;
        }
      }
    } else {
      // Four matrices of 8 pixels x 8 channels: this lane addresses a pixel of the first or second row, and the first
      // or second 8 of the warp's 16 channels.
      const int pixel = this_lane() / 16 * 8 * L::row_step + this_lane() % 8;
      const int chunk = warp() * 2 + this_lane() / 8 % 2;
      staged_ = result_slot(0) + pixel * L::pixel_bytes + ((chunk ^ pixel % 8) << 4);
    }
    if constexpr (Problem::reads_mask) {
      // Of 64 bytes of a pixel a warp has 16: two pixels are 128 bytes, whose chunks are exchanged like four pairs'.
      const int pair = this_lane() % 4;
      mask_ = shared_address(result_slot(0)) + L::tile_bytes + pair * 2 * L::mask_pitch + ((warp() ^ pair) << 4) +
              this_lane() / 4;
    }
    if constexpr (Problem::reads_operand) load_operand(0, 0);
  }
  /// The operand of these rows and those after them: by the time that they are wanted they have come.
  __device__ __forceinline__ void read_operand(int image, int row) {
    const bool is_last = row + 2 >= Tile::rows;
    if (!is_last || image + 1 < Tile::images) load_operand(is_last ? image + 1 : image, is_last ? 0 : row + 2);
  }
  /// The sums of these rows to bf16, two at a time.
  __device__ __forceinline__ void round_rows(int image, int row) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float* const pair = sums_of(image, row + i / 2) + i % 2 * 2;
      const unsigned packed = pack_bf16(pair[0], pair[1]);
      pair[0] = __uint_as_float(packed << 16);
      pair[1] = __uint_as_float(packed & 0xffff0000u);
    }
  }
  /// The sums of these rows as elements to the result's slots: a dead halo's, the operand's or the consumer's own.
  __device__ __forceinline__ void stage_rows(int image, int row) {
    const float *const upper = sums_of(image, row), *const lower = sums_of(image, row + 1);
    if constexpr (Problem::parts == 2) {
#pragma unroll
      for (int i = 0; i < 8; ++i) slot_store(float_at(image, row, i), i < 4 ? upper[i] : lower[i - 4]);
    } else {
      stmatrix_x4_trans(staged_ + row_at(image, row), pack_bf16(upper[0], upper[1]), pack_bf16(upper[2], upper[3]),
                        pack_bf16(lower[0], lower[1]), pack_bf16(lower[2], lower[3]));
    }
  }

  // What a thread holds, number (image, half, lane): the output channel is channel(half), the pixel x(lane) of row
  // y(lane) of image(image). (A line of pixels has neither rows nor images.)
  __device__ __forceinline__ float& sum(int image, int half, int lane) {
    return sums_of(image, lane / 2)[half * 2 + lane % 2];
  }
  __device__ __forceinline__ float operand(int image, int half, int lane) const {
    const auto& rows = operand_[buffer(image, lane / 2)];
    if constexpr (Problem::parts == 2) {
      return __uint_as_float(rows[lane / 2 % 2 * 4 + half * 2 + lane % 2]);
    } else {
      const unsigned pair = rows[lane / 2 % 2 * 2 + half];
      return __uint_as_float(lane % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
    }
  }
  __device__ __forceinline__ unsigned mask(int image, int half, int lane) const {
    const int pixel = group(image, lane / 2) * 8 + lane % 2;
    return slot_load_byte(mask_ + pixel * L::mask_pitch + half * 8);
  }
  __device__ __forceinline__ int channel(int half) const {
    return origin_.output + warp() * 16 + half * 8 + this_lane() / 4;
  }
  __device__ __forceinline__ int image(int image) const {
    return origin_.image + image * Tile::abreast + (Tile::abreast > 1 ? column() / Tile::width : 0);
  }
  __device__ __forceinline__ int y(int lane) const { return origin_.y + lane / 2; }
  __device__ __forceinline__ int x(int lane) const { return origin_.x + column() % Tile::width + lane % 2; }

  /// What was staged to the result.
  __device__ __forceinline__ void store(const TensorMap& result) {
    fence_shared_for_engines();
    named_barrier_sync(kOwn + number_, L::warpgroup);
    if (threadIdx.x % L::warpgroup == 0) {
      const Place place = place_of<L>(origin_);
#pragma unroll
      for (int part = 0; part < Problem::parts; ++part) {
        tensor_store(result, result_slot(part), origin_.output + part * Problem::chunk, place.first, place.second,
                     place.third);
      }
      tensor_store_commit();
    }
  }
  /// After store: gives the slots back, where they are the ring's.
  __device__ __forceinline__ void finish() {
    if constexpr (!Tile::shares_halo) {
      leave();
#pragma unroll
      for (int part = 0; part < Problem::parts; ++part) give_back(results_[part]);
    }
  }
  /// After the last tile: shared memory has been read.
  __device__ __forceinline__ void leave() {
    if (threadIdx.x % L::warpgroup == 0) tensor_store_wait_read<0>();
  }

 private:
  static constexpr int kOwn = 1, kTurn = kOwn + L::consumers;  // Named barriers, one for each consumer.
  static constexpr int kGroupBytes = 8 * L::pixel_bytes;
  static constexpr int kStep = Problem::chunk / 4;  ///< Of k, of an instruction.
  static constexpr bool takes_turns = L::is_resident && L::halos > 1;
  /// Whether a tile's first product forgets what is in the sums' registers. Where registers are few, beside
  /// transformers or many sums, the compiler spills some where statistics follow: there the sums begin with zeros.
  static constexpr bool starts_afresh = !Problem::has_prologue && L::pixels <= 128;

  __device__ __forceinline__ static int this_lane() { return static_cast<int>(threadIdx.x % 32u); }
  __device__ __forceinline__ static int warp() { return static_cast<int>(threadIdx.x / 32u % 4u); }
  /// Of the tile's, this thread's first; the second is next to it.
  __device__ __forceinline__ static int column() { return this_lane() % 4 * 2; }
  /// Number of an image's row of 8 pixels in the tile, and that of the sums.
  __device__ __forceinline__ static int group(int image, int row) {
    return image * L::image_step + row * L::row_step;
  }
  /// This thread's four sums of it: two channels, two pixels of each.
  __device__ __forceinline__ float* sums_of(int image, int row) {
    constexpr int kGroups = L::pixels / 8 / L::products;
    return &sums_[group(image, row) / kGroups][group(image, row) % kGroups * 4];
  }
  /// Where its pixels are in a tile.
  __device__ __forceinline__ static int row_at(int image, int row) { return group(image, row) * kGroupBytes; }
  /// Which operands are those of a row and the one after it.
  __device__ __forceinline__ static int buffer(int image, int row) { return (image * Tile::rows + row) / 2 % 2; }
  __device__ __forceinline__ static void arrive(Barrier* barrier) {
    if (this_lane() == 0) barrier_arrive(barrier);
  }
  __device__ __forceinline__ void give_back(int halo) const {
    if (L::arrivals == L::warpgroup || this_lane() == 0) barrier_arrive(shared_.halo_empty(halo));
  }

  /// Where in its part of the result sum `i` of two rows belongs.
  __device__ __forceinline__ unsigned float_at(int image, int row, int i) const {
    return floats_[i % 4] + row_at(image, row + i / 4);
  }
  __device__ __forceinline__ void load_operand(int image, int row) {
    auto& rows = operand_[buffer(image, row)];
    if constexpr (Problem::parts == 2) {
#pragma unroll
      for (int i = 0; i < 8; ++i) rows[i] = __float_as_uint(slot_load(float_at(image, row, i)));
    } else {
      ldmatrix_x4_trans(rows, staged_ + row_at(image, row));
    }
  }

  /// The next halo with all taps; `steps` times kStep of its channels.
  template <int steps>
  __device__ __forceinline__ void add_chunk(bool is_first) {
    barrier_wait(shared_.halo_ready(halo_.slot), halo_.parity);
#pragma unroll
    for (int tap = 0; tap < Problem::taps; ++tap) {
      barrier_wait(shared_.tap_full(tap_.slot), L::is_resident ? 0 : tap_.parity);
      add_tap<steps>(tap, is_first && tap == 0);
      // What was read before this tap is free once the products before it are done.
      if (!L::is_resident || tap == 0) multiply_wait<1>();
      if (!L::is_resident && !(is_first && tap == 0)) arrive(shared_.tap_empty(last_tap_));
      if (tap == 0 && !is_first) give_back(last_halo_);
      last_tap_ = tap_.slot;
      tap_.advance();
    }
    last_halo_ = halo_.slot;
    advance_halo();
  }
  /// To this consumer's next slot.
  __device__ __forceinline__ void advance_halo() { halo_.advance(L::is_resident ? 1 : L::halos); }
  /// Where the tile's operand is and its results are staged.
  __device__ __forceinline__ unsigned char* result_slot(int part) const {
    return Tile::shares_halo ? shared_.result(number_) : shared_.halo(results_[part]);
  }

  template <int steps>
  __device__ __forceinline__ void add_tap(int tap, bool is_first) {
    const int moved = tap_at<L>(tap / Problem::filter, tap % Problem::filter);
    // Beside transformers there is no register for where each tap lies.
    const int slot = Problem::has_prologue ? static_cast<int>(computed_here(tap_.slot)) : tap_.slot;
    const unsigned char* taps = shared_.tap(slot) + (Tile::shares_halo ? number_ * L::own_tap_bytes : 0);
    const unsigned long long a = matrix_descriptor(taps, 1024);
    const unsigned long long b =
        matrix_descriptor(shared_.halo(halo_.slot), L::is_dense ? kGroupBytes : Problem::stride * L::halo_pitch);
    multiply_fence();
#pragma unroll
    for (int k = 0; k < steps; ++k) {
#pragma unroll
      for (int i = 0; i < L::products; ++i) {
        const unsigned long long pixels = matrix_moved(b, moved + i * L::halo_image + k * 32);
        const bool accumulate = k > 0 || !starts_afresh || !is_first;
        if constexpr (Problem::parts == 2) {
          multiply_tf32(sums_[i], matrix_moved(a, k * 32), pixels, accumulate);
        } else {
          // In a turned filter, 16 of k are as many rows of 128 bytes.
          multiply_bf16<Problem::is_turned>(sums_[i], matrix_moved(a, k * (Problem::is_turned ? 2048 : 32)), pixels,
                                            accumulate);
        }
      }
    }
    multiply_commit();
  }

  const Shared<L> shared_;
  const int number_;
  RingPlace<Tile::halo_slots> halo_;
  RingPlace<Tile::tap_slots> tap_;
  int last_halo_ = 0, last_tap_ = 0, operand_parity_ = 0;
  Origin origin_;
  float sums_[L::products][L::pixels / L::products / 2];
  int results_[Problem::parts];              ///< Slots of the result's parts.
  unsigned char* staged_ = nullptr;          ///< This lane's row of the first matrices in the result's slot.
  unsigned mask_ = 0;                        ///< This lane's first byte of the mask.
  unsigned floats_[4];                       ///< In f32: where its sums of the first row of pixels belong.
  unsigned operand_[2][4 * Problem::parts];  ///< Of a pair of rows, and of the next.
};

}  // namespace conv
