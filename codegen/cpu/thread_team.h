// The threads of one executor. A step is hundreds of short parallel loops, so a worker that has nothing to do spins for
// a moment before it sleeps: on a quiet machine it is there at once, and on a busy one it does not burn the time slice
// that another thread of the team is waiting for. OpenMP's own team spins for milliseconds, which costs a factor of ten
// as soon as one other process wants a core.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace difuse::codegen {

class ThreadTeam {
 public:
  /// Starts threads - 1 workers; the caller of `run` is the last one. Throws Error when the system refuses.
  explicit ThreadTeam(int threads);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Runs body(thread) once for each thread in [0, threads()), at the same time, and returns when all are done. `body`
  /// must not throw. Calls must not overlap.
  void run(const std::function<void(int)>& body);

 private:
  void work(int thread);
  void stop();

  std::vector<std::thread> workers_;
  const std::function<void(int)>* body_ = nullptr;  // null: the workers are to end
  std::atomic<uint32_t> round_{0};                  // counts calls of `run`
  std::atomic<uint32_t> working_{0};                // workers that have not finished this round
};

}  // namespace difuse::codegen
