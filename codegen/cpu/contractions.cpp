#include "codegen/cpu/contractions.h"

#include <fmt/format.h>

#include "codegen/cpu/onednn.h"
#include "codegen/cpu/plain.h"
#include "ir/error.h"

namespace difuse::codegen {

std::unique_ptr<Contractions> make_contractions(std::string* why_plain) {
  std::string reason;
  std::unique_ptr<Contractions> made = OneDnn::load(&reason);
  if (!made) made = std::make_unique<PlainContractions>();
  if (why_plain != nullptr) *why_plain = reason;
  return made;
}

void check(const ConvProblem& problem) {
  const auto& p = problem;
  const bool positive = p.n > 0 && p.h > 0 && p.w > 0 && p.c > 0 && p.k > 0 && p.r > 0 && p.s > 0 && p.stride > 0;
  if (!positive || p.pad < 0 || p.h + 2 * p.pad < p.r || p.w + 2 * p.pad < p.s) {
    throw Error(fmt::format("no convolution of [{}, {}, {}, {}] by {} filters of {}x{}, stride {}, pad {}", p.n, p.h,
                            p.w, p.c, p.k, p.r, p.s, p.stride, p.pad),
                "every extent must be positive and the filter must fit into the padded image");
  }
}

void check(const MatmulProblem& problem) {
  const auto& p = problem;
  const bool positive = p.m > 0 && p.n > 0 && p.k > 0;
  if (!positive || p.lda < (p.transpose_a ? p.m : p.k) || p.ldb < (p.transpose_b ? p.k : p.n) || p.ldc < p.n) {
    throw Error(fmt::format("no matrix product [{}, {}] x [{}, {}] with row distances {}, {} and {}", p.m, p.k, p.k,
                            p.n, p.lda, p.ldb, p.ldc),
                "every extent must be positive and no row may be longer than the distance between rows");
  }
}

}  // namespace difuse::codegen
