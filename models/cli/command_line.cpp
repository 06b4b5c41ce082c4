#include "models/cli/command_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "ir/error.h"
#include "models/cli/commands.h"
#include "models/config/nearest.h"

namespace difuse::models {
namespace {

struct Command {
  std::string_view name;
  const char* summary;
  Action (*add)(CLI::App& app);
  bool prints = false;  ///< What it prints is all it does.
};

constexpr std::array kCommands = {
    Command{"train", "Train a diffusion UNet on images", &add_train},
    Command{"sample", "Draw images from a checkpoint", &add_sample},
    Command{"visualize", "Show a model at work: noise going in, noise going out, samplers side by side",
            &add_visualize},
    Command{"convert", "Read the weights of other programs, and write them", &add_convert},
    Command{"compile", "Compile a step for a GPU that need not be there, and print its kernels", &add_compile, true},
    Command{"run", "Run one step on given numbers", &add_run},
    Command{"tune", "Find out the fastest tiles for a step's kernels on this GPU, and keep them", &add_tune},
    Command{"bench", "Measure a step, and each of its kernels", &add_bench, true},
    Command{"check", "Compare each kernel of a step with the fp64 reference", &add_check, true},
    Command{"inspect", "Describe a model preset, a checkpoint or a data set", &add_inspect, true},
    Command{"doctor", "Say what this machine has and what difuse makes of it", &add_doctor, true},
};

std::vector<std::string> flag_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (option == app.get_help_ptr()) continue;
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

/// `left` are the arguments that nothing took.
[[noreturn]] void refuse(const CLI::App& app, const std::string& command, const std::vector<std::string>& left) {
  for (const std::string& argument : left) {
    if (argument.size() < 2 || argument[0] != '-') continue;
    const std::string flag = argument.substr(0, argument.find('='));
    throw Error(fmt::format("unknown flag '{}' of difuse {}", flag, command), choose_from(flag, flag_names(app)),
                ExitCode::wrong_usage);
  }
  throw Error(fmt::format("unexpected argument '{}' of difuse {}", left.front(), command),
              fmt::format("every value belongs to a flag; see difuse {} --help", command), ExitCode::wrong_usage);
}

/// A pipe whose reader has seen enough (`| head`) is no failure.
void require_printed() {
  errno = 0;
  if ((std::fflush(stdout) == 0 && std::ferror(stdout) == 0) || errno == EPIPE) return;
  throw Error(fmt::format("standard output cannot be written{}{}", errno != 0 ? ": " : "",
                          errno != 0 ? std::strerror(errno) : ""),
              "free some space, or send it elsewhere");
}

[[noreturn]] void no_command(const std::vector<std::string>& left) {
  std::vector<std::string> names;
  for (const Command& command : kCommands) names.emplace_back(command.name);
  const std::string word = left.empty() ? std::string() : left.front();
  throw Error(left.empty() ? "no command given" : fmt::format("unknown command '{}'", word),
              choose_from(word, names) + "; difuse --help says what each does", ExitCode::wrong_usage);
}

}  // namespace

int run_command_line(int argc, const char* const* argv, std::chrono::steady_clock::time_point started) {
  CLI::App app("difuse: a graph compiler for diffusion UNets", "difuse");
  app.require_subcommand(0, 1);
  app.set_version_flag("--version", "difuse " DIFUSE_VERSION);
  app.set_help_flag("--help,-h", "Print this text");
  app.footer("difuse <command> --help lists a command's flags. Environment variables: difuse doctor.");
  app.allow_extras();

  std::vector<std::pair<CLI::App*, Action>> commands;
  for (const Command& command : kCommands) {
    CLI::App* sub = app.add_subcommand(std::string(command.name), command.summary);
    sub->set_help_flag("--help,-h", "Print this text");
    sub->allow_extras();
    commands.emplace_back(sub, command.add(*sub));
  }

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ArgumentMismatch& error) {  // "--lr: 1 required X missing"
    const std::string text = error.what();
    throw Error(fmt::format("{} needs a value", text.substr(0, text.find(':'))),
                "difuse <command> --help says what each flag takes", ExitCode::wrong_usage);
  } catch (const CLI::ParseError& error) {
    throw Error(error.what(), "difuse --help and difuse <command> --help list what there is", ExitCode::wrong_usage);
  }
  for (const auto& [sub, action] : commands) {
    if (!sub->parsed()) continue;
    if (const std::vector<std::string> left = sub->remaining(); !left.empty()) refuse(*sub, sub->get_name(), left);
    if (const std::vector<std::string> left = app.remaining(); !left.empty()) refuse(*sub, sub->get_name(), left);
    const int exit_code = action({ir::Options::from_environment(), started});
    const auto* command = std::ranges::find(kCommands, sub->get_name(), &Command::name);
    if (command != kCommands.end() && command->prints) require_printed();
    return exit_code;
  }
  no_command(app.remaining());
}

}  // namespace difuse::models
