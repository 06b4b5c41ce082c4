#include "runtime/cuda/tensor_map.h"

#include <fmt/format.h>

#include <vector>

#include "ir/error.h"

namespace difuse::runtime {
namespace {

cuda::TensorMapType type_of(ir::DType dtype) {
  switch (dtype) {
    case ir::DType::u8:
      return cuda::TensorMapType::u8;
    case ir::DType::bf16:
      return cuda::TensorMapType::bf16;
    case ir::DType::f16:
      return cuda::TensorMapType::f16;
    case ir::DType::f32:
      return cuda::TensorMapType::f32;
    default:
      throw Error(fmt::format("a tensor map of {}", ir::to_string(dtype)));
  }
}

template <class To>
std::vector<To> as(const std::vector<int64_t>& from) {
  return {from.begin(), from.end()};
}

}  // namespace

cuda::TensorMap encode_tensor_map(const CudaDriver& driver, const codegen::cuda::TensorMapSpec& spec, uint64_t address,
                                  std::string_view what) {
  const auto extents = as<uint64_t>(spec.extents), strides = as<uint64_t>(spec.strides);
  const auto box = as<uint32_t>(spec.box), steps = as<uint32_t>(spec.steps);
  const auto swizzle = spec.row_bytes() == 64 ? cuda::TensorMapSwizzle::bytes_64 : cuda::TensorMapSwizzle::bytes_128;
  cuda::TensorMap map;
  driver.require(driver->cuTensorMapEncodeTiled(&map, type_of(spec.dtype), static_cast<uint32_t>(extents.size()),
                                                reinterpret_cast<void*>(address), extents.data(), strides.data(),
                                                box.data(), steps.data(), cuda::TensorMapInterleave::none, swizzle,
                                                cuda::TensorMapL2Promotion::bytes_256, cuda::TensorMapFill::zeros),
                 what);
  return map;
}

}  // namespace difuse::runtime
