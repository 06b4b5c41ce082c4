// The one exception type of difuse.
//
// It is thrown at the boundary that knows the user's own word for the thing (a file, a flag, an op) and is caught once,
// in the command line. `assert` is for bugs only.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace difuse {

/// How the process ends when an Error reaches the command line.
enum class ExitCode : int {
  failed = 1,       ///< The work failed: bad data, a full disk, a broken checkpoint.
  wrong_usage = 2,  ///< The call or the environment is wrong: an unknown flag, a missing file, a malformed variable.
};

/// `message` says what is wrong and names the file, flag or value; `remedy` says what to do about it.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, std::string remedy = {}, ExitCode exit_code = ExitCode::failed)
      : std::runtime_error(message), remedy_(std::move(remedy)), exit_code_(exit_code) {}

  const std::string& remedy() const { return remedy_; }
  ExitCode exit_code() const { return exit_code_; }

 private:
  std::string remedy_;
  ExitCode exit_code_;
};

/// Throws the Error of a wrong call or environment.
[[noreturn]] inline void wrong_usage(const std::string& message, std::string remedy) {
  throw Error(message, std::move(remedy), ExitCode::wrong_usage);
}

}  // namespace difuse
