// Contractions through oneDNN 2.x, loaded by name at run time: the binary has no link to it.
//
// Every primitive is made for one thread and keeps its scratchpad in the caller's hands (the library's shared
// scratchpad gives wrong bits when one primitive runs from two threads). Convolutions leave the weights' layout to the
// library
// (`any`): NHWC activations cost nothing, but plain weights would fall to its reference implementation, which is a
// thousand times slower. Matrix products are dnnl_sgemm: the same kernels and bits as its matmul primitive, with less
// to set up. A shape that the library has only a reference implementation for goes to the plain loops of plain.h.
//
// Built without oneDNN's headers (DIFUSE_HAVE_ONEDNN 0), `load` always answers that there is none.
#pragma once

#include <memory>
#include <string>

#include "codegen/cpu/contractions.h"

namespace difuse::codegen {

struct OneDnnLibrary;

class OneDnn : public Contractions {
 public:
  /// Null where the library is missing or not version 2; `reason`, where given, then says so in one sentence.
  static std::unique_ptr<OneDnn> load(std::string* reason = nullptr);

  std::string version() const;  ///< e.g. "2.6.3"
  std::string isa() const;      ///< What the library uses: the machine's best or ONEDNN_MAX_CPU_ISA, e.g. "AVX-512".

  std::string description() const override;
  std::unique_ptr<Conv> conv(ConvKind kind, const ConvProblem& problem) const override;
  std::unique_ptr<Matmul> matmul(const MatmulProblem& problem) const override;

  /// A convolution that spreads itself over `threads` threads: what a benchmark compares with, not what a plan uses.
  /// Its `run` may not be called from several threads at once.
  std::unique_ptr<Conv> conv_for_threads(ConvKind kind, const ConvProblem& problem, int threads) const;

 private:
  explicit OneDnn(std::shared_ptr<const OneDnnLibrary> library) : library_(std::move(library)) {}
  std::shared_ptr<const OneDnnLibrary> library_;
};

}  // namespace difuse::codegen
