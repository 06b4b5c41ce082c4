// Contractions by plain loops: what runs where oneDNN is absent, and the stand-in for a shape that oneDNN has only a
// reference implementation for. Right for every shape; all of them are one vectorised tile product.
#pragma once

#include "codegen/cpu/contractions.h"
#include "codegen/cpu/isa.h"

namespace difuse::codegen {

class PlainContractions : public Contractions {
 public:
  explicit PlainContractions(Isa isa = best_isa()) : isa_(isa) {}

  std::string description() const override;
  std::unique_ptr<Conv> conv(ConvKind kind, const ConvProblem& problem) const override;
  std::unique_ptr<Matmul> matmul(const MatmulProblem& problem) const override;

 private:
  Isa isa_;
};

}  // namespace difuse::codegen
