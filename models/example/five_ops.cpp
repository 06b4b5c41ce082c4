// A graph of five ops of one's own, fused, compiled and run: ./five_ops cuda, or ./five_ops for the CPU.
#include <cstdio>
#include <exception>
#include <numeric>
#include <string_view>
#include <vector>

#include "ir/builder.h"
#include "ir/options.h"
#include "models/run/backend.h"

int run(std::string_view device) {
  using namespace difuse;
  const ir::Type image{ir::DType::f32, {2, 4, 4, 8}};

  // What is computed: y = silu(x * scale) + x, and the sum of y over each image's pixels.
  ir::Graph graph("five_ops");
  ir::Builder build(graph);
  const ir::Value x = build.input("x", image), scale = build.input("scale", {ir::DType::f32, {8}});
  const ir::Value y = build.add(build.silu(build.mul(x, build.broadcast_channels(scale, image.shape))), x);
  graph.set_output("y", y);
  graph.set_output("sums", build.reduce_sum(y, {1, 2}));

  // One kernel (two launches on a GPU, where a sum has two stages).
  const ir::Options environment = ir::Options::from_environment();
  const models::DeviceChoice choice = models::parse_device(std::string(device)).value();
  const models::Backend backend = models::open_backend(choice, passes::Precision::f32, /*threads=*/1, environment);
  const auto executor = models::compile(std::move(graph), environment, backend);

  std::vector<float> pixels(static_cast<size_t>(image.elements())), scales(8, 1.0f), sums(16);
  std::iota(pixels.begin(), pixels.end(), -128.0f);
  executor->write_input("x", std::as_bytes(std::span(pixels)));
  executor->write_input("scale", std::as_bytes(std::span(scales)));
  executor->run();
  executor->read_output("sums", std::as_writable_bytes(std::span(sums)));

  std::printf("%s\n", models::backend_line(backend).c_str());
  for (const float sum : sums) std::printf("%g ", static_cast<double>(sum));
  std::printf("\n");
  return 0;
}

int main(int count, char** arguments) {
  try {
    return run(count > 1 ? arguments[1] : "cpu");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
