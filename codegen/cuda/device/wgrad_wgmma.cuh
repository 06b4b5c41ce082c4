// Gradients of a convolution's filter on Hopper: images x [n, y, x, c] and gradients dy [n, y, x, k] in bf16,
// or in f32 that was rounded to tf32; sums in fp32.
//
// As a matrix product: rows are output channels, columns are the taps (r, s) of the filter times the input channels,
// and the sum runs over all pixels of all images. Channels run fastest in memory, so in both operands it is m or n, not
// k, that runs along the rows of shared memory: every pixel is a row of 128 bytes, 64 channels.
//
// A unit of work is one tile of pixels, 8 wide and `rows` high, in each of `images` images, for one block of the
// result. For a filter of 3 x 3 a consumer takes 64 output channels x one row of taps x 64 input channels: the three
// taps of a row are one instruction's columns, in chunks of 64 that overlap, each one pixel further on in the tile's
// input, which is loaded once, with a border of one pixel (the halo). A block is up to three such consumers: all rows
// of taps, or further output channels. For a filter of 1 x 1 all pixels of all images are one line, and a block has up
// to three times 64 output channels, one for each consumer, and up to three times 64 input channels, the chunks.
//
// Images of 4 or 2 pixels' width lie side by side, `abreast` of them, in the 8 columns of a tile, and a row of all of
// its images follows the row above (conv_wgmma.cuh). Their x is loaded once for each tap of a row, that much further on
// and no wider than the image: from one chunk of columns to the next is from one copy to the next. So it is with a
// stride of two, however wide the images: the copies are of every second column, and of even and of odd rows.
//
// The W units, block by block, are shared out evenly: group g of G, a block of the kernel, takes units g W / G to
// (g + 1) W / G, which may begin in one block of the result and end in another. For each it writes its partial sums,
// and a second kernel adds those of one block in the order of g. So the order follows from the shape, the batch and G,
// which is smaller where several such kernels share the processors.
// Where there is one group for each block of the result, its sums are whole, and no second kernel is needed.
//
// Partial sums are many bytes. So a group may be a pair of blocks, a cluster: of the group's units of one block of the
// result each multiplies half, sends half of its sums to the other one, through the other's ring, which is at rest
// then, and writes what the two have of the other half.
//
// For tf32 the tensor cores take no matrix whose k runs along columns, so there all is turned: rows are input channels,
// columns output channels. x comes from registers: threads read from the tile what a product of 8 pixels, one of its
// rows, takes of them. dy does come from shared memory, where three warps, the turners, have written it anew with its
// pixels along the rows. For a filter of 3 x 3 a consumer has one column of taps, and uses what it read of the halo for
// all three of them. For a filter of 1 x 1 a unit is 32 pixels, as many as fill a row of 128 bytes, and dy is turned in
// its place; a consumer has 64 input channels and all output channels of the block.
//
// What is computed of x or dy before they are multiplied, the prologue, a further role does in shared memory
// (wgrad_prologue.cuh): a transformer, a warpgroup, one of whose threads is the producer.
#pragma once
#include "codegen/cuda/device/ptx_sm90.cuh"
#include "codegen/cuda/device/ring.cuh"
#include "codegen/cuda/device/vector.cuh"

namespace wgrad {

/// `Element`: bf16 or f32, of x and dy. `first_inputs`: where x are two images, one behind the other in each pixel, the
/// channels of the first, a multiple of 64. `transforms_x`, `transforms_dy`: something is computed of it. `stride`: 1 or
/// 2.
template <int height_, int width_, int inputs_, int outputs_, int filter_, int pad_, class Element_ = bf16,
          int first_inputs_ = inputs_, bool transforms_x_ = false, bool transforms_dy_ = false, int stride_ = 1>
struct Problem {
  using Element = Element_;
  static constexpr bool is_float = sizeof(Element) == 4;
  static constexpr int parts = is_float ? 2 : 1;  ///< Of 64 channels, each 128 bytes of a pixel.
  static constexpr int height = height_, width = width_, inputs = inputs_, outputs = outputs_, filter = filter_;
  static constexpr int pad = pad_, stride = stride_, first_inputs = first_inputs_;
  static constexpr bool transforms_x = transforms_x_, transforms_dy = transforms_dy_;
  static constexpr bool has_prologue = transforms_x || transforms_dy;
  static_assert(first_inputs == inputs || first_inputs % 64 == 0);
  static_assert(!is_float || (first_inputs == inputs && !has_prologue));
};

/// `row_chunks`, `column_chunks`: 64s of output and of input channels in a block of the result; `tap_rows`: rows of the
/// filter's taps in it, all or one; `blocks`: of the kernel, on a processor at once; `cluster`: those of a group, 1 or
/// 2; `abreast`: images side by side, 1, 2 or 4, in place of each of `images`.
template <int rows_, int images_, int slots_, int row_chunks_, int column_chunks_, int tap_rows_, int blocks_,
          int cluster_, int abreast_ = 1>
struct Tile {
  static constexpr int rows = rows_, images = images_, slots = slots_;
  static constexpr int row_chunks = row_chunks_, column_chunks = column_chunks_, tap_rows = tap_rows_;
  static constexpr int blocks = blocks_, cluster = cluster_;
  static constexpr int abreast = abreast_, width = 8 / abreast;  ///< Of an image's part.
};

template <class Problem_, class Tile_>
struct Layout {
  using Problem = Problem_;
  using Tile = Tile_;
  static constexpr bool is_line = Problem::filter == 1;
  static constexpr bool is_float_line = is_line && Problem::is_float;
  static constexpr int consumers = is_float_line ? Tile::column_chunks : Tile::row_chunks * Tile::tap_rows;
  static constexpr int warpgroup = 128;
  /// Warps that write dy anew; the one before them is the producer.
  static constexpr int turners = Problem::is_float ? 3 : 0;
  /// Warps that transform x and dy, the producer's among them.
  static constexpr int transformers = Problem::has_prologue ? 4 : 0;
  static constexpr int makers = turners + transformers;  ///< Of what consumers wait for besides the copies.
  static constexpr int threads = consumers * warpgroup + (Problem::has_prologue ? warpgroup : 32 * (1 + turners));
  static constexpr int pixels = 8 * Tile::rows * Tile::images;
  static constexpr int tiles_x = (Problem::width + Tile::width - 1) / Tile::width;
  static constexpr int tiles_y = (Problem::height + Tile::rows - 1) / Tile::rows;

  static constexpr int block_outputs = 64 * Tile::row_chunks, block_inputs = 64 * Tile::column_chunks;
  static constexpr int blocks_y = (Problem::outputs + block_outputs - 1) / block_outputs;
  static constexpr int blocks_x = (Problem::inputs + block_inputs - 1) / block_inputs;
  static constexpr int blocks = blocks_x * blocks_y * (Problem::filter / Tile::tap_rows);
  /// Of a consumer, for 64 rows.
  static constexpr int columns = is_float_line ? block_outputs : is_line ? block_inputs : 192;
  static constexpr int sums = columns / 2;  ///< Of a thread.

  static constexpr int pixel_bytes = 128;
  /// The pixels that a tap meets are one piece.
  static constexpr bool is_dense = Tile::abreast > 1 || Problem::stride > 1;
  /// From a row of a halo to the next, and from one piece to the next: an image, or all of them for a tap of a row.
  static constexpr int halo_pitch = (is_dense ? 8 * Tile::images : 8 + Problem::filter - 1) * pixel_bytes;
  static constexpr int halo_rows = Tile::rows + (Tile::tap_rows - 1) / Problem::stride;
  static constexpr int halo_piece = halo_rows * halo_pitch;
  /// Rows of taps take what has every second row in turns.
  static constexpr int row_turns = Tile::tap_rows > 1 ? Problem::stride : 1;
  static constexpr int pieces = is_dense ? row_turns * Problem::filter : Tile::images;
  static constexpr int halo_part = pieces * halo_piece, chunk_part = pixels * pixel_bytes;
  static constexpr int halo_bytes = Problem::parts * halo_part;    ///< Of one chunk of x.
  static constexpr int chunk_bytes = Problem::parts * chunk_part;  ///< Of one chunk of dy.
  /// From one part of x to the next: threads count its pixels from a multiple of 1024 bytes on.
  static constexpr int halo_stride = (halo_part + 1023) / 1024 * 1024;
  static constexpr int x_bytes = Tile::column_chunks * halo_bytes, dy_bytes = Tile::row_chunks * chunk_bytes;
  static constexpr int dy_at =
      Problem::is_float ? Tile::column_chunks * Problem::parts * halo_stride : (x_bytes + 1023) / 1024 * 1024;
  static constexpr int turned_at = is_float_line ? dy_at : dy_at + dy_bytes;
  /// dy with four rows of 8 pixels along each of 64 rows of 128 bytes.
  static constexpr int turned_block = 64 * 128;
  static constexpr int turned_bytes = Problem::is_float && !is_line ? (pixels + 31) / 32 * turned_block : 0;
  static constexpr int slot_bytes = dy_at + dy_bytes + turned_bytes;
  static constexpr int barriers_at = Tile::slots * slot_bytes;
  static constexpr int bytes = barriers_at + (makers > 0 ? 3 : 2) * Tile::slots * 8;

  // Partial sums of a block, as the consumers' threads hold them: run i of thread t, four sums, is run i * owners + t.
  static constexpr int owners = consumers * warpgroup, thread_runs = sums / 4, block_runs = owners * thread_runs;
  static constexpr int block_sums = 4 * block_runs;
  static constexpr int own_runs = thread_runs / Tile::cluster;  ///< Of a thread, that it writes.

  static_assert(Tile::rows % 2 == 0 && (is_line ? Tile::images == 1 : Tile::column_chunks == 1));
  static_assert(!Problem::is_float || (is_line ? pixels == 32 : Tile::tap_rows == 3 && Tile::blocks == 1));
  static_assert(!is_dense || (!is_line && !Problem::is_float && !Problem::has_prologue));
  static_assert(Problem::filter % Tile::tap_rows == 0 && (Tile::row_chunks == 1 || Tile::tap_rows == 1));
  static_assert(Tile::cluster == 1 || (Tile::cluster == 2 && owners * own_runs * 16 <= barriers_at));

  /// Which 64 of the block's output channels a consumer has, and which of its rows of taps.
  __device__ __forceinline__ static int row_chunk(int consumer) { return Tile::tap_rows == 1 ? consumer : 0; }
  __device__ __forceinline__ static int tap_row(int consumer) { return Tile::tap_rows == 1 ? 0 : consumer; }
};

/// The first output and input channel and row of taps of a block of the result.
struct Origin {
  int output, input, tap_row;
};
template <class L>
__device__ __forceinline__ Origin origin_of(int block) {
  const int column = quotient<L::blocks_y>(block);
  return {remainder_of<L::blocks_y>(block) * L::block_outputs, remainder_of<L::blocks_x>(column) * L::block_inputs,
          quotient<L::blocks_x>(column) * L::Tile::tap_rows};
}

/// What says where a block's partial sums belong in the result: literals of a Layout, or arguments of a kernel that
/// adds those of any.
struct Sizes {
  int filter, outputs, inputs, owners, block_runs, blocks_y, blocks_x, block_outputs, block_inputs, tap_rows;
  int is_turned;  ///< Rows of partial sums are input channels.
};
template <class L>
__device__ __forceinline__ constexpr Sizes sizes_of() {
  return {L::Problem::filter, L::Problem::outputs, L::Problem::inputs, L::owners,       L::block_runs,
          L::blocks_y,        L::blocks_x,         L::block_outputs,   L::block_inputs, L::Tile::tap_rows,
          L::Problem::is_float};
}

/// Where run `run` of a block of the result begins in the result [outputs, taps, inputs].
struct RunPlace {
  int output, tap, input;

  /// Negative: nowhere.
  __device__ __forceinline__ int element(const Sizes& of) const {
    if (output >= of.outputs || input >= of.inputs) return -1;
    return (output * of.filter * of.filter + tap) * of.inputs + input;
  }
  /// A thread's runs i to i + 3, where i is a multiple of 4, lie in two rows each of two halves of 32 columns.
  __device__ __forceinline__ int element(const Sizes& of, int further) const {
    const int first = further % 2, second = further / 2;
    if (of.is_turned != 0) return RunPlace{output + second * 16, tap, input + first * 8}.element(of);
    return RunPlace{output + first * 8, tap, input + second * 16}.element(of);
  }
};
__device__ __forceinline__ RunPlace place_of(const Sizes& of, unsigned block, unsigned run) {
  const int thread = static_cast<int>(run % static_cast<unsigned>(of.owners));
  const int i = static_cast<int>(run / static_cast<unsigned>(of.owners));
  const auto blocks_y = static_cast<unsigned>(of.blocks_y), blocks_x = static_cast<unsigned>(of.blocks_x);
  const int row_block = static_cast<int>(block % blocks_y),
            column_block = static_cast<int>(block / blocks_y % blocks_x);
  if (of.is_turned != 0) {
    const int lane = thread % 32, column = i / 2 * 16 + lane / 8 % 2 * 8 + lane % 4 * 2 + lane / 4 % 2;
    const int output = row_block * of.block_outputs, consumer = thread / 128;
    const int input = column_block * of.block_inputs + thread / 32 % 4 * 16 + i % 2 * 8 + lane / 16 * 4;
    if (of.filter == 1) return {output + column, 0, input + consumer * 64};
    return {output + column % 64, (2 - column / 64) * 3 + consumer, input};
  }
  const int lane = thread % 32, consumer = thread / 128, column = i / 2 * 16 + lane % 2 * 8 + lane / 2 % 2 * 4;
  const int row_chunk = of.tap_rows == 1 ? consumer : 0, tap_row = of.tap_rows == 1 ? 0 : consumer;
  const int output = row_block * of.block_outputs + row_chunk * 64 + thread / 32 % 4 * 16 + i % 2 * 8 + lane / 4;
  int input = column_block * of.block_inputs, tap = 0;
  if (of.filter == 1) {
    input += column;
  } else {
    tap = (static_cast<int>(block / blocks_y / blocks_x) * of.tap_rows + tap_row) * 3 + column / 64;
    input += column % 64;
  }
  return {output, tap, input};
}
__device__ __forceinline__ int element_of(const Sizes& of, unsigned block, unsigned run) {
  return place_of(of, block, run).element(of);
}

/// Tiles of a block of the result.
struct Units {
  int block, tile, count;

  /// Those that this block of a cluster takes of the group's; none, perhaps.
  template <int cluster>
  __device__ __forceinline__ Units own_part() const {
    if constexpr (cluster == 1) return *this;
    const int rank = cluster_rank(), first = rank * count / cluster;
    return {block, tile + first, (rank + 1) * count / cluster - first};
  }
};
/// Calls `visit` with the units of a group of `blocks` blocks of the result, `tiles` each: those of one block after the
/// other.
template <class Visit>
__device__ __forceinline__ void for_each_block(long long group, long long groups, long long blocks, int tiles,
                                               const Visit& visit) {
  const long long units = blocks * tiles, first = group * units / groups;
  int left = static_cast<int>((group + 1) * units / groups - first);
  int block = static_cast<int>(first / tiles), tile = static_cast<int>(first % tiles);
#pragma unroll 1
  for (; left > 0; ++block, tile = 0) {
    const int rest = tiles - tile, count = rest < left ? rest : left;
    visit(Units{block, tile, count});
    left -= count;
  }
}

/// The groups that have units of a block of the result, whose partial sums lie one behind the other from slot
/// first + block on.
struct Groups {
  int first, count;
};
__device__ __forceinline__ Groups groups_of(long long block, long long blocks, long long tiles, long long groups) {
  const long long units = blocks * tiles;
  const float share = static_cast<float>(groups) / static_cast<float>(units);
  // ((unit + 1) * groups - 1) / units: a division of such numbers takes as long as all else.
  const auto group_of = [&](long long unit) {
    const long long shared = (unit + 1) * groups - 1;
    int group = static_cast<int>(static_cast<float>(unit) * share);
    while (group * units > shared) --group;
    while ((group + 1) * units <= shared) ++group;
    return group;
  };
  const int first = group_of(block * tiles);
  return {first, group_of((block + 1) * tiles - 1) - first + 1};
}

/// The block's shared memory.
template <class L>
struct Shared {
  unsigned char* start;

  __device__ __forceinline__ unsigned char* x(int slot) const { return start + slot * L::slot_bytes; }
  __device__ __forceinline__ unsigned char* dy(int slot) const { return x(slot) + L::dy_at; }
  __device__ __forceinline__ Barrier* full(int slot) const {
    return reinterpret_cast<Barrier*>(start + L::barriers_at) + slot;
  }
  __device__ __forceinline__ Barrier* empty(int slot) const { return full(L::Tile::slots + slot); }
  // Where dy is turned, or something transformed: for the consumers, when it is. And where turned dy lies.
  __device__ __forceinline__ Barrier* ready(int slot) const { return full(2 * L::Tile::slots + slot); }
  __device__ __forceinline__ unsigned char* turned_dy(int slot) const { return x(slot) + L::turned_at; }

  /// By all threads, once.
  __device__ __forceinline__ void init() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < L::Tile::slots; ++i) {
        barrier_init(full(i), 1);
        barrier_init(empty(i), 4 * L::consumers);
        if constexpr (L::makers > 0) barrier_init(ready(i), L::makers);
      }
      barrier_init_done();
    }
    __syncthreads();
  }
};

/// By all lanes of the warps that are no consumers: until the cluster's blocks have exchanged their sums, the ring is
/// theirs.
template <class L>
__device__ __forceinline__ void wait_for_exchange() {
  __syncwarp();
  cluster_meet();
  cluster_sync();
  named_barrier_sync(1, L::threads);
}

/// A float of a tile of 128 bytes a pixel, whose pixels are counted from a multiple of 1024 bytes on.
__device__ __forceinline__ unsigned float_at(unsigned tile, int pixel, int channel) {
  return tile + static_cast<unsigned>(pixel * 128 + ((channel / 4 ^ pixel % 8) << 4) + channel % 4 * 4);
}

/// Of the warps after the producer, number `warp`: writes what has come of dy with its pixels along the rows, the even
/// ones of a row of the tile before the odd ones. Those of a line in their place, 32 by 32.
template <class L>
class Turner {
 public:
  __device__ __forceinline__ Turner(unsigned char* start, int warp) : shared_{start}, warp_(warp) {}

  __device__ __forceinline__ void turn(int count) {
#pragma unroll 1
    for (int i = 0; i < count; ++i) turn();
  }

 private:
  __device__ __forceinline__ void turn() {
    const unsigned dy = shared_address(shared_.dy(place_.slot));
    const int lane = static_cast<int>(threadIdx.x % 32u);
    barrier_wait(shared_.full(place_.slot), place_.parity);
    if constexpr (L::is_line) {
#pragma unroll 1
      for (int part = warp_; part < L::Tile::row_chunks * L::Problem::parts; part += L::turners) {
        turn_in_place(dy + static_cast<unsigned>(part * L::chunk_part), lane);
      }
    } else {
      turn_tile(dy, shared_address(shared_.turned_dy(place_.slot)), lane);
    }
    fence_shared_for_engines();
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_.ready(place_.slot));
    place_.advance();
  }

  __device__ __forceinline__ void turn_tile(unsigned dy, unsigned to, int lane) const {
    constexpr int kHalves = L::pixels / 4;  // Of the tile's rows of pixels.
#pragma unroll 2
    for (int i = warp_; i < kHalves; i += L::turners) {
      const int row = i / 2, half = i % 2, chunk = (row % 4 * 2 + half) ^ lane % 8;
      const unsigned turned = to + static_cast<unsigned>(row / 4 * L::turned_block + lane * 128 + chunk * 16);
#pragma unroll
      for (int part = 0; part < L::Problem::parts; ++part) {
        float x[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          x[j] = slot_load(float_at(dy + static_cast<unsigned>(part * L::chunk_part), row * 8 + 2 * j + half, lane));
        }
        slot_store(turned + static_cast<unsigned>(part * 32 * 128), x[0], x[1], x[2], x[3]);
      }
    }
  }
  /// 32 pixels of 32 channels, in quarters: those on the diagonal, then the two that change places. Each half of the
  /// warp has one of them.
  __device__ __forceinline__ static void turn_in_place(unsigned dy, int lane) {
    const int half = lane / 16;
#pragma unroll
    for (int other = 0; other < 2; ++other) {
      const int channel = (half ^ other) * 16 + lane % 16;
      // Chunks are exchanged in the addresses themselves, for what would be added to them is more than registers hold.
      const unsigned from = float_at(dy + static_cast<unsigned>(half * 16 * 128), 0, channel);
      const unsigned to = dy + static_cast<unsigned>(channel * 128 + ((half * 4 ^ channel % 8) << 4));
      float x[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const unsigned pixel = static_cast<unsigned>(i / 2 * 8 + 2 * j + i % 2);
          x[i][j] = slot_load((from ^ pixel % 8 << 4) + pixel * 128);
        }
      }
      __syncwarp();  // All have read.
#pragma unroll
      for (int i = 0; i < 4; ++i) slot_store(to ^ static_cast<unsigned>(i << 4), x[i][0], x[i][1], x[i][2], x[i][3]);
    }
  }

  const Shared<L> shared_;
  const int warp_;
  RingPlace<L::Tile::slots> place_;
};

/// Where the group's partial sums of block 0 would begin.
template <class L>
__device__ __forceinline__ float* partials_of(float* partials, long long group) {
  float* own = partials + group * L::block_sums;
  // Beside the sums of tf32's lines, a consumer's further registers hold only what it computes after it has taken them.
  if constexpr (L::is_float_line) compute_here(own);
  return own;
}

/// By all threads where a warpgroup is beside three consumers: these 512 begin with 128 registers.
template <class L, bool consumes>
__device__ __forceinline__ void share_registers() {
  if constexpr (L::threads != 4 * L::warpgroup) return;
  if constexpr (consumes) {
    take_registers<L::Problem::is_float ? 152 : L::Problem::transforms_dy ? 136 : 144>();
  } else {
    give_registers<L::Problem::is_float ? 56 : L::Problem::transforms_dy ? 104 : 80>();
  }
}

/// A warp: fills the ring.
template <class L>
class Producer {
 public:
  __device__ __forceinline__ Producer(unsigned char* start, const TensorMap& x, const TensorMap& dy)
      : Producer(start, x, dy, x) {}
  /// `second`: of the other image, where x are two.
  __device__ __forceinline__ Producer(unsigned char* start, const TensorMap& x, const TensorMap& dy,
                                      const TensorMap& second)
      : shared_{start}, x_(x), dy_(dy), second_(second) {}

  /// By one thread.
  __device__ __forceinline__ void load(const Units& units) {
    const Origin origin = origin_of<L>(units.block);
#pragma unroll 1
    for (int i = 0; i < units.count; ++i) load(origin, units.tile + i);
  }

 private:
  __device__ __forceinline__ void load(const Origin& origin, int tile) {
    Barrier* full = shared_.full(place_.slot);
    unsigned char *const x = shared_.x(place_.slot), *const dy = shared_.dy(place_.slot);
    barrier_wait(shared_.empty(place_.slot), place_.parity ^ 1);
    barrier_arrive_expecting(full, L::x_bytes + L::dy_bytes);
    if constexpr (L::is_line) {
      const int at = tile * L::pixels;
#pragma unroll
      for (int i = 0; i < L::Tile::row_chunks * L::Problem::parts; ++i) {
        tensor_load(dy + i * L::chunk_part, dy_, full, origin.output + i * (64 / L::Problem::parts), at, 0, 0);
      }
#pragma unroll
      for (int i = 0; i < L::Tile::column_chunks * L::Problem::parts; ++i) {
        load_x(x + i * L::halo_part, full, origin.input + i * (64 / L::Problem::parts), at, 0, 0);
      }
    } else {
      const int line = quotient<L::tiles_x>(tile);
      const int image = quotient<L::tiles_y>(line) * (L::Tile::images * L::Tile::abreast);
      const int at_x = remainder_of<L::tiles_x>(tile) * L::Tile::width;
      const int at_y = remainder_of<L::tiles_y>(line) * L::Tile::rows;
      const int x_at_x = at_x * L::Problem::stride - L::Problem::pad;
      const int x_at_y = at_y * L::Problem::stride - L::Problem::pad + origin.tap_row;
#pragma unroll
      for (int i = 0; i < L::Tile::row_chunks * L::Problem::parts; ++i) {
        tensor_load(dy + i * L::chunk_part, dy_, full, origin.output + i * (64 / L::Problem::parts), at_x,
                    L::is_dense ? image : at_y, L::is_dense ? at_y : image);
      }
#pragma unroll
      for (int i = 0; i < (L::is_dense ? L::pieces : L::Problem::parts); ++i) {
        if constexpr (L::is_dense) {
          load_x(x + i * L::halo_piece, full, origin.input, x_at_x + i % L::Problem::filter, image,
                 x_at_y + i / L::Problem::filter);
        } else {
          load_x(x + i * L::halo_stride, full, origin.input + i * (64 / L::Problem::parts), x_at_x, x_at_y, image);
        }
      }
    }
    place_.advance();
  }
  /// At a row of an image, or where a tap's pixels are one piece at an image and its row: the order in a box.
  __device__ __forceinline__ void load_x(void* to, Barrier* full, int channel, int at_x, int second, int third) const {
    // A branch, for the compiler (NVRTC 13.0) crashes where it chooses between the addresses of two parameters.
    if (L::Problem::first_inputs == L::Problem::inputs || channel < L::Problem::first_inputs) {
      tensor_load(to, x_, full, channel, at_x, second, third);
    } else {
      tensor_load(to, second_, full, channel - L::Problem::first_inputs, at_x, second, third);
    }
  }

  const Shared<L> shared_;
  const TensorMap &x_, &dy_, &second_;
  RingPlace<L::Tile::slots> place_;
};

/// 128 threads: a consumer, with 64 rows and L::columns columns of the block.
template <class L>
class Consumer {
 public:
  __device__ __forceinline__ explicit Consumer(unsigned char* start)
      : shared_{start}, number_(static_cast<int>(threadIdx.x) / L::warpgroup) {}

  /// The sum of the next `count` units, at least one where a group is one block.
  __device__ __forceinline__ void multiply(int count) {
#pragma unroll
    for (int i = 0; i < L::sums; ++i) sums_[i] = 0.0f;
    if constexpr (L::is_float_line) {
      multiply_lines(count);
      return;
    }
    if constexpr (L::Problem::is_float) {
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        add_floats();
        arrive(advance());
      }
      return;
    }
    if (L::Tile::cluster > 1 && count == 0) return;
    multiply_unit();
    int last = advance();
#pragma unroll 1
    for (int i = 1; i < count; ++i) {
      multiply_unit();
      multiply_wait<1>();
      arrive(last);
      last = advance();
    }
    multiply_wait<0>();
    arrive(last);
  }

  /// By all consumers of the cluster's two blocks, while their producers wait_for_exchange: the sums of both, of the
  /// half that is this block's. The thread's runs are then those from rank x own_runs on.
  __device__ __forceinline__ void exchange() {
    multiply_registers(sums_);
    cluster_meet();
    if (cluster_rank() == 0) {
      exchange_halves<0>();
    } else {
      exchange_halves<1>();
    }
  }

  /// Run `i` of the thread's sums. By all threads: neighbouring lanes exchange pairs, so that each has four consecutive
  /// columns instead of twice two; or four exchange all, for four consecutive rows of one column.
  __device__ __forceinline__ Run<float, 4> run(int i) const {
    if constexpr (L::Problem::is_float) return turned_run(&sums_[i / 2 * 8 + i % 2 * 2]);
    const bool odd = threadIdx.x % 2 != 0;
    const float* low = &sums_[i / 2 * 8 + i % 2 * 2];
    const float* high = low + 4;
    const float a = __shfl_xor_sync(~0u, odd ? low[0] : high[0], 1);
    const float b = __shfl_xor_sync(~0u, odd ? low[1] : high[1], 1);
    return odd ? Run<float, 4>{a, b, high[0], high[1]} : Run<float, 4>{low[0], low[1], a, b};
  }
  /// `to`: the group's partial sums of the block.
  __device__ __forceinline__ void store(float* to) const {
    if constexpr (L::Tile::cluster > 1) to += cluster_rank() * (L::own_runs * L::owners * 4);
    to += threadIdx.x * 4;
#pragma unroll
    for (int i = 0; i < L::own_runs; ++i) store_run<4>(to + i * (L::owners * 4), run(i));
  }

 private:
  static constexpr int kGroup = 2;  ///< Rows of a halo in one group of products.

  template <int rank>
  __device__ __forceinline__ void exchange_halves() {
    constexpr int half = L::sums / 2, own = rank * half, others = half - own;
    unsigned char* const received = shared_.start + threadIdx.x * 16;
    const unsigned to = cluster_address(received, rank ^ 1);
#pragma unroll
    for (int i = 0; i < half; i += 4) {
      const float* sums = &sums_[others + i];
      cluster_store(to + i * (L::owners * 4), sums[0], sums[1], sums[2], sums[3]);
    }
    cluster_sync();
#pragma unroll
    for (int i = 0; i < half; i += 4) {
      const auto more = load_run<4>(reinterpret_cast<const float*>(received + i * (L::owners * 4)));
#pragma unroll
      for (int l = 0; l < 4; ++l) sums_[i + l] = sums_[own + i + l] + more[l];
    }
    fence_shared_for_engines();
    named_barrier_arrive(1, L::threads);
  }

  /// Of four lanes that have rows one behind the other, each with columns from[0], from[1], from[4] and from[5], number
  /// l receives the l-th of them.
  __device__ __forceinline__ static Run<float, 4> turned_run(const float* from) {
    const bool odd = threadIdx.x / 4 % 2 != 0, upper = threadIdx.x / 8 % 2 != 0;
    // Of rows 2 m and 2 m + 1, column 0 or 1, and 4 or 5.
    const float a = __shfl_xor_sync(~0u, odd ? from[0] : from[1], 4);
    const float b = __shfl_xor_sync(~0u, odd ? from[4] : from[5], 4);
    const float low[2] = {odd ? a : from[0], odd ? from[1] : a}, high[2] = {odd ? b : from[4], odd ? from[5] : b};
    const float c = __shfl_xor_sync(~0u, upper ? low[0] : high[0], 8);
    const float d = __shfl_xor_sync(~0u, upper ? low[1] : high[1], 8);
    return upper ? Run<float, 4>{c, d, high[0], high[1]} : Run<float, 4>{low[0], low[1], c, d};
  }

  /// What a thread has of a row of the halo for its column of taps: of two pixels, two channels.
  __device__ __forceinline__ void load_row(unsigned (&to)[4], unsigned first, unsigned pixel, int row) const {
    const unsigned chunk = static_cast<unsigned>(warp() % 2 * 4 + this_lane() / 16) << 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned further = static_cast<unsigned>(row * 10 + i / 2);
      const unsigned exchanged = ((pixel + further) << 4 & 0x70u) ^ (chunk + static_cast<unsigned>(i % 2 * 32));
      to[i] = __float_as_uint(slot_load(first + exchanged + further * 128));
    }
  }
  /// The products of kGroup rows of an image's halo, from row group * kGroup on.
  template <int group>
  __device__ __forceinline__ void multiply_rows(unsigned (&x)[kGroup][4], unsigned long long dy, int image) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) multiply_registers(x[i]);
    multiply_fence();
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
#pragma unroll
      for (int r = 0; r < 3; ++r) {
        const int row = group * kGroup + i - r;  // Of dy.
        if (row < 0 || row >= L::Tile::rows) continue;
        const int place = image * L::Tile::rows + row;
        multiply_tf32(reinterpret_cast<float(&)[32]>(sums_[(2 - r) * 32]), x[i],
                      matrix_moved(dy, place / 4 * L::turned_block + place % 4 * 32));
      }
    }
    multiply_commit();
  }
  template <int group>
  __device__ __forceinline__ void add_rows(unsigned (&x)[kGroup][4], unsigned (&next)[kGroup][4], unsigned part,
                                           unsigned long long dy, int image) {
    multiply_rows<group>(x, dy, image);
    if constexpr ((group + 1) * kGroup < L::Tile::rows + 2) {
      multiply_wait<1>();  // Those from `next` are done.
      load_group(next, part, image, group + 1);
      add_rows<group + 1>(next, x, part, dy, image);
    }
  }
  __device__ __forceinline__ void load_group(unsigned (&to)[kGroup][4], unsigned part, int image, int group) const {
    // Places are computed anew for each group: those of all rows would take more registers than there are.
    unsigned pixel[1] = {static_cast<unsigned>(number_ + this_lane() % 4 * 2)};
    multiply_registers(pixel);
    const unsigned first = part + pixel[0] * 128 + static_cast<unsigned>(this_lane() / 4 % 4 * 4);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int row = group * kGroup + i;
      if (row < L::Tile::rows + 2) load_row(to[i], first, pixel[0], image * (L::Tile::rows + 2) + row);
    }
  }
  __device__ __forceinline__ void add_floats() {
    unsigned x[2][kGroup][4] = {};
    const unsigned long long dy = matrix_descriptor(shared_.turned_dy(place_.slot), 1024);
    barrier_wait(shared_.full(place_.slot), place_.parity);
    barrier_wait(shared_.ready(place_.slot), place_.parity);
    const unsigned part =
        shared_address(shared_.x(place_.slot)) + static_cast<unsigned>(warp() / 2 * L::halo_stride);
    multiply_registers(sums_);
#pragma unroll
    for (int image = 0; image < L::Tile::images; ++image) {
      load_group(x[0], part, image, 0);
      add_rows<0>(x[0], x[1], part, dy, image);
      multiply_wait<0>();
    }
    multiply_registers(sums_);
  }

  /// Of tf32's lines: while one row of 8 pixels is multiplied, the next one is read.
  __device__ __forceinline__ void multiply_lines(int count) {
    unsigned x[2][4] = {};
    int last = 0;
    multiply_registers(sums_);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const unsigned chunk = shared_address(shared_.x(place_.slot)) + static_cast<unsigned>(number_ * L::halo_bytes);
      const unsigned part = chunk + static_cast<unsigned>(warp() / 2 * L::halo_part);
      const unsigned long long dy = matrix_descriptor(shared_.turned_dy(place_.slot), 1024);
      barrier_wait(shared_.full(place_.slot), place_.parity);
#pragma unroll
      for (int row = 0; row < L::Tile::rows; ++row) {
        load_line(x[row % 2], part + static_cast<unsigned>(row * 8 * L::pixel_bytes));
        if (row == 0) barrier_wait(shared_.ready(place_.slot), place_.parity);
        multiply_registers(x[row % 2]);
        multiply_fence();
        multiply_tf32(sums_, x[row % 2], matrix_moved(dy, row * 32));
        multiply_commit();
        multiply_wait<1>();  // The row before is done.
        if (row == 0 && i > 0) arrive(last);
      }
      last = advance();
    }
    multiply_wait<0>();
    multiply_registers(sums_);
    if (count > 0) arrive(last);
  }
  /// What a thread has of a row of 8 pixels: of two of them, two channels.
  __device__ __forceinline__ static void load_line(unsigned (&to)[4], unsigned row) {
    const int lane = this_lane(), pixel = lane % 4 * 2;
    const unsigned first = float_at(row, pixel, warp() % 2 * 16 + lane / 4);
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {  // The next pixel, and the channel 8 further on: chunks that differ in one bit.
      to[i] = __float_as_uint(slot_load((first ^ i / 2 << 4 ^ i % 2 << 5) + i / 2 * 128));
    }
  }

  __device__ __forceinline__ void multiply_unit() {
    // Whoever transformed x has waited for the copies.
    barrier_wait(L::Problem::has_prologue ? shared_.ready(place_.slot) : shared_.full(place_.slot), place_.parity);
    const unsigned char* rows = shared_.dy(place_.slot) + L::row_chunk(number_) * L::chunk_bytes;
    const int tap_row = L::tap_row(number_);
    const unsigned char* columns = shared_.x(place_.slot) + tap_row / L::row_turns * L::halo_pitch +
                                   tap_row % L::row_turns * (L::Problem::filter * L::halo_piece);
    constexpr int kRow = 8 * L::pixel_bytes, kTap = L::is_dense ? L::halo_piece : L::pixel_bytes;
    const unsigned long long a = matrix_descriptor(rows, kRow);
    const unsigned long long b =
        matrix_descriptor(columns, L::is_dense ? kRow : L::halo_pitch, L::is_line ? L::halo_bytes : kTap);
    multiply_fence();
#pragma unroll
    for (int row = 0; row < L::Tile::images * L::Tile::rows; row += 2) {
      const int of_image = row / L::Tile::rows * L::halo_piece + row % L::Tile::rows * L::halo_pitch;
      multiply_bf16<1, 1>(sums_, matrix_moved(a, row * kRow), matrix_moved(b, L::is_dense ? row * kRow : of_image),
                          true);
    }
    multiply_commit();
  }
  __device__ __forceinline__ int advance() {
    const int slot = place_.slot;
    place_.advance();
    return slot;
  }
  __device__ __forceinline__ void arrive(int slot) {
    if (threadIdx.x % 32 == 0) barrier_arrive(shared_.empty(slot));
  }

  __device__ __forceinline__ static int this_lane() { return static_cast<int>(threadIdx.x % 32u); }
  __device__ __forceinline__ static int warp() { return static_cast<int>(threadIdx.x / 32u % 4u); }

  const Shared<L> shared_;
  const int number_;
  RingPlace<L::Tile::slots> place_;
  float sums_[L::sums];
};

}  // namespace wgrad
