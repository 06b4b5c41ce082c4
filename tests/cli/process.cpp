#include "tests/cli/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "tests/support/temp_folder.h"

namespace difuse::test {

namespace fs = std::filesystem;

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

fs::path scratch_file() {
  std::string name = (fs::temp_directory_path() / "difuse-output-XXXXXX").string();
  const int descriptor = ::mkstemp(name.data());
  if (descriptor < 0) throw std::runtime_error("no temporary file");
  ::close(descriptor);
  return name;
}

void redirect(const fs::path& path, int to) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_TRUNC);
  if (descriptor < 0 || ::dup2(descriptor, to) < 0) ::_exit(126);
  ::close(descriptor);
}

}  // namespace

std::string Outcome::last_line() const {
  std::string text = out;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

Process::Process(const Words& arguments, const Words& environment, const fs::path& folder)
    : started_(now()), out_(scratch_file()), err_(scratch_file()) {
  std::vector<char*> argv = {const_cast<char*>(DIFUSE_PROGRAM)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  id_ = ::fork();
  if (id_ < 0) throw std::runtime_error("fork failed");
  if (id_ == 0) {
    ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
    for (const std::string& entry : environment) ::putenv(const_cast<char*>(entry.c_str()));
    redirect(out_, STDOUT_FILENO);
    redirect(err_, STDERR_FILENO);
    if (!folder.empty() && ::chdir(folder.c_str()) != 0) ::_exit(126);
    ::execv(DIFUSE_PROGRAM, argv.data());
    ::_exit(127);
  }
}

Process::~Process() {
  if (running()) {
    ::kill(id_, SIGKILL);
    ::waitpid(id_, &status_, 0);
  }
  std::error_code ignored;
  fs::remove(out_, ignored);
  fs::remove(err_, ignored);
}

bool Process::running() {
  if (!reaped_) reaped_ = ::waitpid(id_, &status_, WNOHANG) == id_;
  return !reaped_;
}

void Process::send(int signal) const { ::kill(id_, signal); }

bool Process::wait_for(const fs::path& file, const std::string& text, double seconds) {
  const double until = now() + seconds;
  while (now() < until) {
    const bool alive = running();
    if (contains(read_file(file), text)) return true;
    if (!alive) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

Outcome Process::wait() {
  if (!reaped_) {
    ::waitpid(id_, &status_, 0);
    reaped_ = true;
  }
  Outcome outcome;
  outcome.seconds = now() - started_;
  outcome.exit_code = WIFEXITED(status_) ? WEXITSTATUS(status_) : -1;
  outcome.killed_by = WIFSIGNALED(status_) ? WTERMSIG(status_) : 0;
  outcome.out = read_file(out_);
  outcome.err = read_file(err_);
  return outcome;
}

Outcome difuse(const Words& arguments, const Words& environment, const fs::path& folder) {
  return Process(arguments, environment, folder).wait();
}

}  // namespace difuse::test
