#include "runtime/cuda/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "ir/error.h"

namespace difuse::runtime {

using codegen::cuda::KernelCall;

CudaExecutor::CudaExecutor(std::shared_ptr<const CudaDevice> device, codegen::cuda::CudaPlan plan,
                           std::span<const std::shared_ptr<const codegen::CompiledKernel>> kernels,
                           const CudaExecutorOptions& options)
    : CudaExecutor(std::move(device), std::make_unique<codegen::cuda::CudaPlan>(std::move(plan)), kernels, options) {}

CudaExecutor::CudaExecutor(std::shared_ptr<const CudaDevice> device, std::unique_ptr<codegen::cuda::CudaPlan> plan,
                           std::span<const std::shared_ptr<const codegen::CompiledKernel>> kernels,
                           const CudaExecutorOptions& options)
    : Executor(plan->graph, plan->memory),
      device_(std::move(device)),
      plan_(std::move(plan)),
      options_(options),
      kernels_(*device_, *plan_, kernels),
      arena_(*device_, static_cast<size_t>(plan_->memory.arena_bytes),
             fmt::format("the graph \"{}\"", plan_->graph.name())),
      workspace_(*device_, static_cast<size_t>(plan_->workspace_bytes),
                 fmt::format("the workspace of the graph \"{}\"", plan_->graph.name())),
      uploads_(*device_),
      fetches_(std::make_shared<FetchPool>(device_)),
      launches_(*device_, *plan_, plan_->calls, kernels_, arena_.address(), workspace_.address()),
      taken_over_(*device_, *plan_, plan_->taken_over, kernels_, arena_.address(), workspace_.address()),
      once_(*device_, *plan_, plan_->once, kernels_, arena_.address(), workspace_.address()),
      seconds_(plan_->calls.size()) {
  arena_.zero();
  workspace_.zero();
  fill_leaves();
}

CudaExecutor::~CudaExecutor() {
  try {
    wait();        // Nothing may be freed under a kernel.
  } catch (...) {  // It was thrown before, or nobody asked for the step.
  }
}

std::string CudaExecutor::step_text() const {
  return fmt::format("a step of \"{}\" on the GPU (DIFUSE_DEBUG=1 checks kernel by kernel)", graph().name());
}

/// A kernel may begin while the one before it ends; before the first one comes something else than a kernel.
void CudaExecutor::launch_all(Launches& launches) {
  device_->use();
  for (size_t i = 0; i < launches.size(); ++i) launches.launch(i, /*dependent=*/i > 0);
}

void CudaExecutor::launch_checked(Launches& launches) {
  wait();
  for (size_t i = 0; i < launches.size(); ++i) {
    launches.launch(i, /*dependent=*/false);
    device_->wait(launches.name_of(i));
  }
}

/// On the stream before the step's, and in no graph.
void CudaExecutor::run_once() {
  if (!has_run_ || options_.check) {
    launch_checked(once_);
  } else {
    launch_all(once_);
  }
  set_once_is_due(false);
}

void CudaExecutor::run() {
  if (once_is_due()) run_once();
  if (!has_run_ || (options_.check && !profiling_)) {
    launch_checked(launches_);  // What fails is named, and the driver has loaded all code before anything is captured.
    has_run_ = true;
  } else if (profiling_) {
    run_profiled();
  } else if (!options_.graphs) {
    launch_all(launches_);
  } else {
    if (!graph_) {
      Capture capture(*device_);
      launch_all(launches_);
      graph_ = capture.finish();
    }
    graph_->launch(step_text());
  }
}

void CudaExecutor::wait() const { device_->wait(step_text()); }

/// Marks between the steps: while one runs, the host starts the next, so what the host takes is not in them.
std::vector<double> CudaExecutor::time_steps(int count) {
  std::deque<Event> marks;
  run();  // The first mark is made while a step runs.
  for (int i = 0; i <= count; ++i) {
    marks.emplace_back(*device_, /*timed=*/true).record();
    if (i < count) run();
  }
  marks.back().wait(step_text());
  std::vector<double> seconds;
  for (size_t i = 1; i < marks.size(); ++i) seconds.push_back(marks[i].seconds_since(marks[i - 1]));
  return seconds;
}

/// Marks between the kernels, in a graph of their own: launched one by one, short kernels would wait for the host.
void CudaExecutor::capture_profile() {
  while (marks_.size() <= launches_.size()) marks_.emplace_back(*device_, /*timed=*/true);
  if (!options_.graphs || profile_graph_) return;
  Capture capture(*device_);
  for (size_t i = 0; i < launches_.size(); ++i) {
    marks_[i].record_in_capture();
    launches_.launch(i, /*dependent=*/false);
  }
  marks_.back().record_in_capture();
  profile_graph_ = capture.finish();
}

void CudaExecutor::run_profiled() {
  device_->use();
  capture_profile();
  if (profile_graph_) {
    profile_graph_->launch(step_text());
  } else {
    for (size_t i = 0; i < launches_.size(); ++i) {
      marks_[i].record();
      launches_.launch(i, /*dependent=*/false);
    }
    marks_.back().record();
  }
  collect_profile();
}

void CudaExecutor::collect_profile() {
  wait();
  for (size_t i = 0; i < launches_.size(); ++i) seconds_[i].push_back(marks_[i + 1].seconds_since(marks_[i]));
}

std::vector<KernelProfile> CudaExecutor::profile() const {
  std::vector<KernelProfile> rows;
  for (size_t i = 0; i < plan_->calls.size(); ++i) {
    const KernelCall& call = plan_->calls[i];
    const double sum = std::accumulate(seconds_[i].begin(), seconds_[i].end(), 0.0);
    rows.push_back({plan_->sources[static_cast<size_t>(call.source)].name, "cuda", call.node,
                    static_cast<int64_t>(seconds_[i].size()), sum, median(seconds_[i]), call.bytes, call.flops});
  }
  return rows;
}

/// Node by node, in the order of their first launches: a launch of several nodes is run for each alone.
void CudaExecutor::run_observed(NodeObserver& observer) {
  wait();
  struct Part {
    Launches& launches;
    size_t call;
    int member;
  };
  std::vector<std::pair<int, std::vector<Part>>> nodes;
  std::map<int, size_t> places;
  const auto add = [&](Launches& launches, size_t i, const KernelCall& call) {
    for (int member = 0; member < call.members; ++member) {
      const int node = call.node_of(member);
      if (call.is_copy) places.erase(node);
      const auto [it, fresh] = places.try_emplace(node, nodes.size());
      if (fresh) nodes.push_back({node, {}});
      nodes[it->second].second.push_back({launches, i, member});
    }
  };
  for (size_t i = 0; i < once_.size(); ++i) add(once_, i, plan_->once[i]);
  for (size_t i = 0; i < launches_.size(); ++i) add(launches_, i, plan_->calls[i]);
  for (size_t i = 0; i < taken_over_.size(); ++i) {
    const auto same = [&](const auto& node) { return node.first == plan_->taken_over[i].node; };
    std::ranges::find_if(nodes, same)->second.push_back({taken_over_, i, 0});
  }
  for (const auto& [node, parts] : nodes) {
    observer.before(node);
    for (const Part& part : parts) {
      part.launches.launch_member(part.call, part.member);
      device_->wait(part.launches.name_of(part.call));
    }
    observer.after(node);
  }
  has_run_ = true;
  set_once_is_due(false);
}

OnceKernels CudaExecutor::once_kernels() const {
  OnceKernels kernels{std::ssize(plan_->once), 0};
  for (const KernelCall& call : plan_->once) kernels.bytes += call.bytes;
  return kernels;
}

void CudaExecutor::upload(int64_t offset, std::span<const std::byte> bytes, int slot) {
  if (bytes.empty()) return;
  const cuda::DevicePointer to = arena_.address() + static_cast<cuda::DevicePointer>(offset);
  if (slot >= 0) {
    uploads_.upload(slot, to, bytes);
    return;
  }
  const CudaDriver& cuda = device_->use();
  cuda.require(cuda->cuMemcpyHtoDAsync_v2(to, bytes.data(), bytes.size(), device_->stream()), "uploading a tensor");
  device_->wait("uploading a tensor");
}

void CudaExecutor::download(int64_t offset, std::span<std::byte> bytes) const {
  wait();
  if (bytes.empty()) return;
  const CudaDriver& cuda = device_->use();
  const cuda::DevicePointer from = arena_.address() + static_cast<cuda::DevicePointer>(offset);
  cuda.require(cuda->cuMemcpyDtoHAsync_v2(bytes.data(), from, bytes.size(), device_->stream()), "downloading a tensor");
  device_->wait("downloading a tensor");
}

std::unique_ptr<Fetch> CudaExecutor::start_fetch(int64_t offset, int64_t bytes) const {
  return fetches_->start(arena_.address() + static_cast<cuda::DevicePointer>(offset), static_cast<size_t>(bytes));
}

}  // namespace difuse::runtime
