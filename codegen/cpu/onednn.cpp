#include "codegen/cpu/onednn.h"

#include <utility>

#ifndef DIFUSE_HAVE_ONEDNN
#define DIFUSE_HAVE_ONEDNN 0
#endif
#if DIFUSE_HAVE_ONEDNN
#include <oneapi/dnnl/dnnl.h>
#if DNNL_VERSION_MAJOR != 2
#undef DIFUSE_HAVE_ONEDNN
#define DIFUSE_HAVE_ONEDNN 0
#endif
#endif

#if DIFUSE_HAVE_ONEDNN

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <type_traits>

#include "codegen/cpu/plain.h"
#include "ir/error.h"

namespace difuse::codegen {

#define DIFUSE_ONEDNN_FUNCTIONS(X)               \
  X(dnnl_version)                                \
  X(dnnl_get_effective_cpu_isa)                  \
  X(dnnl_engine_create)                          \
  X(dnnl_engine_destroy)                         \
  X(dnnl_stream_create)                          \
  X(dnnl_stream_destroy)                         \
  X(dnnl_stream_wait)                            \
  X(dnnl_memory_desc_init_by_tag)                \
  X(dnnl_memory_desc_get_size)                   \
  X(dnnl_memory_create)                          \
  X(dnnl_memory_destroy)                         \
  X(dnnl_primitive_attr_create)                  \
  X(dnnl_primitive_attr_destroy)                 \
  X(dnnl_primitive_attr_set_scratchpad_mode)     \
  X(dnnl_primitive_attr_set_fpmath_mode)         \
  X(dnnl_convolution_forward_desc_init)          \
  X(dnnl_convolution_backward_data_desc_init)    \
  X(dnnl_convolution_backward_weights_desc_init) \
  X(dnnl_reorder_primitive_desc_create)          \
  X(dnnl_primitive_desc_create)                  \
  X(dnnl_primitive_desc_destroy)                 \
  X(dnnl_primitive_desc_query)                   \
  X(dnnl_primitive_desc_query_md)                \
  X(dnnl_primitive_create)                       \
  X(dnnl_primitive_destroy)                      \
  X(dnnl_primitive_execute)                      \
  X(dnnl_sgemm)

/// The loaded library, its functions under their own names, and one engine and stream (both without state on a CPU).
struct OneDnnLibrary {
#define DIFUSE_ONEDNN_POINTER(function) decltype(&::function) function = nullptr;  // NOLINT(bugprone-macro-parentheses)
  DIFUSE_ONEDNN_FUNCTIONS(DIFUSE_ONEDNN_POINTER)
#undef DIFUSE_ONEDNN_POINTER
  // The OpenMP runtime that the library itself uses, whichever this program was built with.
  void (*omp_set_num_threads)(int) = nullptr;
  int (*omp_get_max_threads)() = nullptr;

  std::unique_ptr<void, int (*)(void*)> handle{nullptr, &dlclose};
  dnnl_engine_t engine = nullptr;
  dnnl_stream_t stream = nullptr;

  OneDnnLibrary() = default;
  OneDnnLibrary(const OneDnnLibrary&) = delete;
  OneDnnLibrary& operator=(const OneDnnLibrary&) = delete;
  ~OneDnnLibrary() {
    if (stream != nullptr) dnnl_stream_destroy(stream);
    if (engine != nullptr) dnnl_engine_destroy(engine);
  }
};

namespace {

constexpr const char* kLibraryName = "libdnnl.so.2";

void require(dnnl_status_t status, std::string_view what) {
  if (status == dnnl_success) return;
  throw Error(fmt::format("oneDNN: {} failed with status {}", what, static_cast<int>(status)),
              fmt::format("if {} is damaged, reinstall or remove it: without it plain loops serve", kLibraryName),
              ExitCode::failed);
}

/// Makes oneDNN see this many threads: while a primitive is made for them, and while it runs, since outside of a
/// parallel region, or inside one of a single thread, the library would take all.
class Threads {
 public:
  Threads(const OneDnnLibrary& library, int count) : library_(library), before_(library.omp_get_max_threads()) {
    if (before_ != count) library_.omp_set_num_threads(count);
    changed_ = before_ != count;
  }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  ~Threads() {
    if (changed_) library_.omp_set_num_threads(before_);
  }

 private:
  const OneDnnLibrary& library_;
  int before_;
  bool changed_;
};

template <class T>
using Handle = std::unique_ptr<std::remove_pointer_t<T>, dnnl_status_t (*)(T)>;

using PrimitiveDescriptor = Handle<dnnl_primitive_desc_t>;

struct Argument {
  int name;
  const dnnl_memory_desc_t* descriptor;
  const void* data;
};

/// A primitive and what it asks of its caller.
class Primitive {
 public:
  Primitive(const OneDnnLibrary& library, int threads, const PrimitiveDescriptor& descriptor)
      : library_(library), threads_(threads), primitive_(nullptr, library.dnnl_primitive_destroy) {
    dnnl_primitive_t made = nullptr;
    require(library.dnnl_primitive_create(&made, descriptor.get()), "making a primitive");
    primitive_.reset(made);
    scratchpad_ = *library.dnnl_primitive_desc_query_md(descriptor.get(), dnnl_query_scratchpad_md, 0);
  }

  size_t scratch_bytes() const { return library_.dnnl_memory_desc_get_size(&scratchpad_); }

  template <size_t kCount>
  void run(const std::array<Argument, kCount>& arguments, std::byte* scratch) const {
    const Threads scope(library_, threads_);
    std::array<Memory, kCount + 1> memories;
    std::array<dnnl_exec_arg_t, kCount + 1> passed;
    for (size_t i = 0; i < kCount; ++i) {
      memories[i].wrap(library_, *arguments[i].descriptor, arguments[i].data);
      passed[i] = {arguments[i].name, memories[i].get()};
    }
    memories[kCount].wrap(library_, scratchpad_, scratch);
    passed[kCount] = {DNNL_ARG_SCRATCHPAD, memories[kCount].get()};
    require(library_.dnnl_primitive_execute(primitive_.get(), library_.stream, static_cast<int>(passed.size()),
                                            passed.data()),
            "running a primitive");
    require(library_.dnnl_stream_wait(library_.stream), "waiting for a primitive");
  }

 private:
  class Memory {
   public:
    Memory() = default;
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory() {
      if (memory_ != nullptr) library_->dnnl_memory_destroy(memory_);
    }
    void wrap(const OneDnnLibrary& library, const dnnl_memory_desc_t& descriptor, const void* data) {
      library_ = &library;
      require(library.dnnl_memory_create(&memory_, &descriptor, library.engine, const_cast<void*>(data)),
              "naming a buffer");
    }
    dnnl_memory_t get() const { return memory_; }

   private:
    const OneDnnLibrary* library_ = nullptr;
    dnnl_memory_t memory_ = nullptr;
  };

  const OneDnnLibrary& library_;
  int threads_;
  Handle<dnnl_primitive_t> primitive_;
  dnnl_memory_desc_t scratchpad_;
};

dnnl_memory_desc_t describe(const OneDnnLibrary& library, int a, int b, int c, int d, dnnl_format_tag_t layout) {
  dnnl_memory_desc_t descriptor;
  const dnnl_dims_t dims = {a, b, c, d};
  require(library.dnnl_memory_desc_init_by_tag(&descriptor, 4, dims, dnnl_f32, layout), "describing a tensor");
  return descriptor;
}

Handle<dnnl_primitive_attr_t> make_attributes(const OneDnnLibrary& library) {
  dnnl_primitive_attr_t made = nullptr;
  require(library.dnnl_primitive_attr_create(&made), "making attributes");
  Handle<dnnl_primitive_attr_t> attributes(made, library.dnnl_primitive_attr_destroy);
  require(library.dnnl_primitive_attr_set_scratchpad_mode(made, dnnl_scratchpad_mode_user),
          "setting the scratchpad mode");
  require(library.dnnl_primitive_attr_set_fpmath_mode(made, dnnl_fpmath_mode_strict), "setting the arithmetic");
  return attributes;
}

/// Descriptors of one convolution; `primitive` is empty where the library has no implementation at all.
struct ConvDescriptors {
  dnnl_memory_desc_t x, y, krsc, packed;
  PrimitiveDescriptor primitive;
  std::string impl_info;
};

ConvDescriptors describe_conv(const OneDnnLibrary& library, ConvKind kind, const ConvProblem& p) {
  ConvDescriptors made{describe(library, p.n, p.c, p.h, p.w, dnnl_nhwc),
                       describe(library, p.n, p.k, p.out_h(), p.out_w(), dnnl_nhwc),
                       describe(library, p.k, p.c, p.r, p.s, dnnl_ohwi),
                       describe(library, p.k, p.c, p.r, p.s, dnnl_format_tag_any),
                       PrimitiveDescriptor(nullptr, library.dnnl_primitive_desc_destroy),
                       {}};
  const dnnl_dims_t stride = {p.stride, p.stride};
  const dnnl_dims_t before = {p.pad, p.pad};
  // What remains of the padding at the far side when the stride does not divide the image.
  const dnnl_dims_t after = {(p.out_h() - 1) * p.stride + p.r - p.h - p.pad,
                             (p.out_w() - 1) * p.stride + p.s - p.w - p.pad};
  const auto algorithm = dnnl_convolution_direct;

  dnnl_convolution_desc_t forward;
  require(library.dnnl_convolution_forward_desc_init(&forward, dnnl_forward_training, algorithm, &made.x, &made.packed,
                                                     nullptr, &made.y, stride, before, after),
          "describing a convolution");
  dnnl_convolution_desc_t wanted = forward;
  if (kind == ConvKind::dgrad) {
    require(library.dnnl_convolution_backward_data_desc_init(&wanted, algorithm, &made.x, &made.packed, &made.y, stride,
                                                             before, after),
            "describing a data gradient");
  } else if (kind == ConvKind::wgrad) {
    require(library.dnnl_convolution_backward_weights_desc_init(&wanted, algorithm, &made.x, &made.packed, nullptr,
                                                                &made.y, stride, before, after),
            "describing a weight gradient");
  }

  const auto attributes = make_attributes(library);
  PrimitiveDescriptor hint(nullptr, library.dnnl_primitive_desc_destroy);
  dnnl_primitive_desc_t raw = nullptr;
  if (kind != ConvKind::fprop) {  // A gradient's descriptor is asked for with its forward pass as a hint.
    if (library.dnnl_primitive_desc_create(&raw, &forward, attributes.get(), library.engine, nullptr) != dnnl_success) {
      return made;
    }
    hint.reset(raw);
  }
  if (library.dnnl_primitive_desc_create(&raw, &wanted, attributes.get(), library.engine, hint.get()) != dnnl_success) {
    return made;
  }
  made.primitive.reset(raw);
  const char* name = nullptr;
  require(library.dnnl_primitive_desc_query(raw, dnnl_query_impl_info_str, 0, &name), "naming an implementation");
  made.impl_info = name;
  const auto weights = kind == ConvKind::wgrad ? dnnl_query_diff_weights_md : dnnl_query_weights_md;
  made.packed = *library.dnnl_primitive_desc_query_md(raw, weights, 0);
  return made;
}

PrimitiveDescriptor describe_reorder(const OneDnnLibrary& library, const dnnl_memory_desc_t& from,
                                     const dnnl_memory_desc_t& to) {
  const auto attributes = make_attributes(library);
  dnnl_primitive_desc_t raw = nullptr;
  require(
      library.dnnl_reorder_primitive_desc_create(&raw, &from, library.engine, &to, library.engine, attributes.get()),
      "describing a reorder");
  return {raw, library.dnnl_primitive_desc_destroy};
}

class OneDnnConv : public Conv {
 public:
  OneDnnConv(std::shared_ptr<const OneDnnLibrary> library, ConvKind kind, int threads,
             const ConvDescriptors& descriptors)
      : library_(std::move(library)),
        kind_(kind),
        impl_info_(descriptors.impl_info),
        x_(descriptors.x),
        y_(descriptors.y),
        krsc_(descriptors.krsc),
        packed_(descriptors.packed),
        primitive_(*library_, threads, descriptors.primitive),
        pack_(*library_, threads, describe_reorder(*library_, krsc_, packed_)),
        unpack_(*library_, threads, describe_reorder(*library_, packed_, krsc_)) {}

  size_t weights_bytes() const override { return library_->dnnl_memory_desc_get_size(&packed_); }
  size_t scratch_bytes() const override {
    return std::max({primitive_.scratch_bytes(), pack_.scratch_bytes(), unpack_.scratch_bytes()});
  }
  std::string impl_info() const override { return impl_info_; }

  void pack(const float* krsc, float* packed, std::byte* scratch) const override {
    pack_.run<2>({{{DNNL_ARG_SRC, &krsc_, krsc}, {DNNL_ARG_DST, &packed_, packed}}}, scratch);
  }
  void unpack(const float* packed, float* krsc, std::byte* scratch) const override {
    unpack_.run<2>({{{DNNL_ARG_SRC, &packed_, packed}, {DNNL_ARG_DST, &krsc_, krsc}}}, scratch);
  }

  void run(const float* first, const float* second, float* result, std::byte* scratch) const override {
    switch (kind_) {
      case ConvKind::fprop:
        primitive_.run<3>(
            {{{DNNL_ARG_SRC, &x_, first}, {DNNL_ARG_WEIGHTS, &packed_, second}, {DNNL_ARG_DST, &y_, result}}}, scratch);
        return;
      case ConvKind::dgrad:
        primitive_.run<3>(
            {{{DNNL_ARG_DIFF_DST, &y_, first}, {DNNL_ARG_WEIGHTS, &packed_, second}, {DNNL_ARG_DIFF_SRC, &x_, result}}},
            scratch);
        return;
      case ConvKind::wgrad:
        primitive_.run<3>(
            {{{DNNL_ARG_SRC, &x_, first}, {DNNL_ARG_DIFF_DST, &y_, second}, {DNNL_ARG_DIFF_WEIGHTS, &packed_, result}}},
            scratch);
        return;
    }
  }

 private:
  std::shared_ptr<const OneDnnLibrary> library_;
  ConvKind kind_;
  std::string impl_info_;
  dnnl_memory_desc_t x_, y_, krsc_, packed_;
  Primitive primitive_, pack_, unpack_;
};

/// The weight gradient of a strided 1x1 filter: the pixels that the filter reads are gathered into scratch, and what is
/// left has stride 1. The library's own kernel for AVX2 (jit_1x1:avx2 in 2.6.3) writes beyond its scratchpad where the
/// input has fewer than eight channels.
class GatheredPointwiseGradient : public Conv {
 public:
  GatheredPointwiseGradient(const ConvProblem& problem, std::unique_ptr<Conv> dense)
      : p_(problem), dense_(std::move(dense)) {
    const size_t unaligned = sizeof(float) * p_.n * p_.out_h() * p_.out_w() * p_.c;
    gathered_bytes_ = (unaligned + kContractionAlignment - 1) / kContractionAlignment * kContractionAlignment;
  }

  static bool serves(ConvKind kind, const ConvProblem& p) {
    return kind == ConvKind::wgrad && p.r == 1 && p.s == 1 && p.stride > 1 && p.pad == 0;
  }
  /// The problem on the gathered pixels.
  static ConvProblem dense(const ConvProblem& p) { return {p.n, p.out_h(), p.out_w(), p.c, p.k, 1, 1, 1, 0}; }

  size_t weights_bytes() const override { return dense_->weights_bytes(); }
  size_t scratch_bytes() const override { return gathered_bytes_ + dense_->scratch_bytes(); }
  std::string impl_info() const override { return dense_->impl_info(); }
  void pack(const float* krsc, float* packed, std::byte* scratch) const override {
    dense_->pack(krsc, packed, scratch);
  }
  void unpack(const float* packed, float* krsc, std::byte* scratch) const override {
    dense_->unpack(packed, krsc, scratch);
  }

  void run(const float* x, const float* dy, float* packed, std::byte* scratch) const override {
    float* gathered = reinterpret_cast<float*>(scratch);
    float* to = gathered;
    for (int64_t image = 0; image < p_.n; ++image) {
      for (int64_t y = 0; y < p_.out_h(); ++y) {
        const float* row = x + (image * p_.h + y * p_.stride) * p_.w * p_.c;
        for (int64_t z = 0; z < p_.out_w(); ++z, to += p_.c) std::copy_n(row + z * p_.stride * p_.c, p_.c, to);
      }
    }
    dense_->run(gathered, dy, packed, scratch + gathered_bytes_);
  }

 private:
  ConvProblem p_;
  std::unique_ptr<Conv> dense_;
  size_t gathered_bytes_;
};

class OneDnnMatmul : public Matmul {
 public:
  OneDnnMatmul(std::shared_ptr<const OneDnnLibrary> library, const MatmulProblem& problem)
      : library_(std::move(library)), p_(problem) {}

  size_t scratch_bytes() const override { return 0; }  // dnnl_sgemm allocates for itself, per call.
  std::string impl_info() const override { return "sgemm:jit"; }

  void run(const float* a, const float* b, float* c, std::byte*) const override {
    const Threads one(*library_, 1);
    require(library_->dnnl_sgemm(p_.transpose_a ? 'T' : 'N', p_.transpose_b ? 'T' : 'N', p_.m, p_.n, p_.k, p_.alpha, a,
                                 p_.lda, b, p_.ldb, p_.accumulate ? 1.0f : 0.0f, c, p_.ldc),
            "a matrix product");
  }

 private:
  std::shared_ptr<const OneDnnLibrary> library_;
  MatmulProblem p_;
};

std::shared_ptr<const OneDnnLibrary> load_library(std::string& reason) {
  auto library = std::make_shared<OneDnnLibrary>();
  // NODELETE: code generated by the library and its thread pool outlive any owner.
  library->handle.reset(dlopen(kLibraryName, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE));
  if (!library->handle) {
    reason = dlerror();
    return nullptr;
  }
  const auto resolve = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library->handle.get(), name));
    if (function == nullptr && reason.empty()) reason = fmt::format("{} has no function {}", kLibraryName, name);
  };
#define DIFUSE_ONEDNN_RESOLVE(function) resolve(library->function, #function);
  DIFUSE_ONEDNN_FUNCTIONS(DIFUSE_ONEDNN_RESOLVE)
#undef DIFUSE_ONEDNN_RESOLVE
  resolve(library->omp_set_num_threads, "omp_set_num_threads");
  resolve(library->omp_get_max_threads, "omp_get_max_threads");
  if (!reason.empty()) return nullptr;
  if (library->dnnl_version()->major != 2) {
    reason = fmt::format("{} is not version 2", kLibraryName);
    return nullptr;
  }
  require(library->dnnl_engine_create(&library->engine, dnnl_cpu, 0), "making a CPU engine");
  require(library->dnnl_stream_create(&library->stream, library->engine, dnnl_stream_default_flags), "making a stream");
  return library;
}

}  // namespace

std::unique_ptr<OneDnn> OneDnn::load(std::string* reason) {
  std::string why;
  auto library = load_library(why);
  if (reason != nullptr) *reason = why;
  if (!library) return nullptr;
  return std::unique_ptr<OneDnn>(new OneDnn(std::move(library)));
}

std::string OneDnn::version() const {
  const dnnl_version_t* version = library_->dnnl_version();
  return fmt::format("{}.{}.{}", version->major, version->minor, version->patch);
}

std::string OneDnn::isa() const {
  // Each value's bits include those of what it extends; AVX2 with VNNI is AVX2 to f32.
  const unsigned isa = library_->dnnl_get_effective_cpu_isa();
  const auto has = [isa](unsigned wanted) { return (isa & wanted) == wanted; };
  if (has(dnnl_cpu_isa_avx512_core)) return "AVX-512";
  if (has(dnnl_cpu_isa_avx2)) return "AVX2";
  if (has(dnnl_cpu_isa_avx)) return "AVX";
  if (has(dnnl_cpu_isa_sse41)) return "SSE4.1";
  return "baseline";
}

std::string OneDnn::description() const { return fmt::format("oneDNN {} ({})", version(), isa()); }

std::unique_ptr<Conv> OneDnn::conv(ConvKind kind, const ConvProblem& problem) const {
  return conv_for_threads(kind, problem, 1);
}

std::unique_ptr<Conv> OneDnn::conv_for_threads(ConvKind kind, const ConvProblem& problem, int threads) const {
  check(problem);
  if (GatheredPointwiseGradient::serves(kind, problem)) {
    auto dense = conv_for_threads(kind, GatheredPointwiseGradient::dense(problem), threads);
    return std::make_unique<GatheredPointwiseGradient>(problem, std::move(dense));
  }
  const Threads scope(*library_, threads);
  const ConvDescriptors descriptors = describe_conv(*library_, kind, problem);
  if (!descriptors.primitive || descriptors.impl_info.find("ref") != std::string::npos) {
    return PlainContractions().conv(kind, problem);
  }
  return std::make_unique<OneDnnConv>(library_, kind, threads, descriptors);
}

std::unique_ptr<Matmul> OneDnn::matmul(const MatmulProblem& problem) const {
  check(problem);
  if (library_->dnnl_get_effective_cpu_isa() == 0)
    return PlainContractions().matmul(problem);  // Its sgemm needs SSE4.1.
  return std::make_unique<OneDnnMatmul>(library_, problem);
}

}  // namespace difuse::codegen

#else  // Built without oneDNN's headers.

namespace difuse::codegen {

struct OneDnnLibrary {};

std::unique_ptr<OneDnn> OneDnn::load(std::string* reason) {
  if (reason != nullptr) *reason = "this program was built without oneDNN 2's headers";
  return nullptr;
}
std::string OneDnn::version() const { return {}; }
std::string OneDnn::isa() const { return {}; }
std::string OneDnn::description() const { return {}; }
std::unique_ptr<Conv> OneDnn::conv(ConvKind, const ConvProblem&) const { return nullptr; }
std::unique_ptr<Conv> OneDnn::conv_for_threads(ConvKind, const ConvProblem&, int) const { return nullptr; }
std::unique_ptr<Matmul> OneDnn::matmul(const MatmulProblem&) const { return nullptr; }

}  // namespace difuse::codegen

#endif
