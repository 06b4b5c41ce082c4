// Instruction sets of the CPU backend's own loops.
//
// One binary runs everywhere: each loop is written once as a `Body` with a static, always-inlined `run`, compiled for
// every instruction set by the target attributes below, and picked by `pick<Body>(isa)`. With -ffp-contract=off and the
// loops' fixed order of operations all of them give the same bits. Plain function pointers are used, not
// `target_clones`, so that a test can run every variant and sanitizers work.
#pragma once

#include <string_view>

namespace difuse::codegen {

enum class Isa { baseline, avx2, avx512 };

/// The widest instruction set that this machine runs.
Isa best_isa();

/// "baseline", "AVX2" or "AVX-512".
std::string_view isa_name(Isa isa);

#define DIFUSE_ALWAYS_INLINE [[gnu::always_inline]] inline
#if defined(__x86_64__) && defined(__GNUC__)
#define DIFUSE_TARGET_AVX2 [[gnu::target("avx2")]]
#define DIFUSE_TARGET_AVX512 [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]]
#else
#define DIFUSE_TARGET_AVX2
#define DIFUSE_TARGET_AVX512
#endif

namespace isa_detail {

template <class Body, class Result, class... Arguments>
Result on_baseline(Arguments... arguments) {
  return Body::run(arguments...);
}
template <class Body, class Result, class... Arguments>
DIFUSE_TARGET_AVX2 Result on_avx2(Arguments... arguments) {
  return Body::run(arguments...);
}
template <class Body, class Result, class... Arguments>
DIFUSE_TARGET_AVX512 Result on_avx512(Arguments... arguments) {
  return Body::run(arguments...);
}

template <class Body, class Result, class... Arguments>
constexpr auto pick(Isa isa, Result (*)(Arguments...)) {
  using Function = Result (*)(Arguments...);
  Function chosen = &on_baseline<Body, Result, Arguments...>;
  if (isa == Isa::avx2) chosen = &on_avx2<Body, Result, Arguments...>;
  if (isa == Isa::avx512) chosen = &on_avx512<Body, Result, Arguments...>;
  return chosen;
}

}  // namespace isa_detail

/// A pointer to `Body::run` compiled for `isa`.
template <class Body>
constexpr auto pick(Isa isa) {
  return isa_detail::pick<Body>(isa, static_cast<decltype(&Body::run)>(nullptr));
}

}  // namespace difuse::codegen
