// What a person reads while difuse works.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

namespace difuse::models {

/// Writes to standard output or standard error. A reader that has gone away, or a full disk under the console, must not
/// end a run: what cannot be written is lost, and std::ferror() remembers it for the commands whose product it is.
/// Names of files may hold what commands a terminal: control characters but \n, \r and \t are written as "\x1b".
void write_console(std::FILE* to, std::string_view text);

/// To standard output.
template <class... Args>
void say(fmt::format_string<Args...> format, Args&&... args) {
  write_console(stdout, fmt::format(format, std::forward<Args>(args)...));
}

/// To standard error.
template <class... Args>
void complain(fmt::format_string<Args...> format, Args&&... args) {
  write_console(stderr, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace difuse::models
