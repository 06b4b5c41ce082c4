// Flags, help and what is said when they are wrong.
#include <gtest/gtest.h>

#include "tests/cli/failure.h"
#include "tests/cli/process.h"
#include "tests/cli/tiny_data.h"

namespace difuse::test {
namespace {

struct Usage {
  const char* name;
  Words arguments;
  Words message;  ///< Parts of it.
};

class WrongUsage : public ::testing::TestWithParam<Usage> {};

TEST_P(WrongUsage, IsNamedWithTheRemedy) {
  const TempFolder folder;
  expect_refused(difuse(GetParam().arguments, {}, folder.path()), 2, GetParam().message);
  EXPECT_EQ(folder.entries(), 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Calls, WrongUsage,
    ::testing::Values(
        Usage{"NoCommand",
              {},
              {"no command", "train, sample, visualize, convert, compile, run, tune, bench, check, inspect, doctor"}},
        Usage{"UnknownCommand", {"trian"}, {"'trian'", "did you mean 'train'?"}},
        Usage{"UnknownFlag", {"train", "--bacth", "8"}, {"'--bacth'", "did you mean '--batch'?", "--steps"}},
        Usage{"UnknownFlagWithValue", {"sample", "--chekpoint=a"}, {"'--chekpoint'", "did you mean '--checkpoint'?"}},
        Usage{"StrayWord", {"train", "images"}, {"'images'", "difuse train --help"}},
        Usage{"NoValue", {"train", "--lr"}, {"--lr needs a value"}},
        Usage{
            "UnknownPreset", {"train", "--model", "tinny"}, {"--model 'tinny'", "did you mean 'tiny'?", "mnist-small"}},
        Usage{"UnknownSchedule", {"train", "--schedule", "cosin"}, {"--schedule 'cosin'", "'cosine'", "linear"}},
        Usage{"UnknownSampler", {"sample", "--sampler", "eulr"}, {"--sampler 'eulr'", "'euler'", "ddpm, ddim"}},
        Usage{"NotANumber", {"train", "--batch", "many"}, {"--batch 'many'", "whole number"}},
        Usage{"NumberWithTail", {"train", "--steps", "10k"}, {"--steps '10k'", "whole number"}},
        Usage{"NotFinite", {"train", "--lr", "nan"}, {"--lr 'nan'", "number above 0"}},
        Usage{"ZeroBatch", {"train", "--batch", "0"}, {"--batch '0'", "from 1"}},
        Usage{"NegativeRate", {"train", "--lr", "-0.1"}, {"--lr '-0.1'", "above 0"}},
        Usage{"DecayOfOne", {"train", "--ema", "0.9,1"}, {"--ema '1'", "below 1"}},
        Usage{"NegativeSeed", {"train", "--seed", "-1"}, {"--seed '-1'", "2^64"}},
        Usage{"EmptyPath", {"train", "--out", ""}, {"--out ''", "path"}},
        Usage{"NoData", {"train", "--out", "a", "--model", "tiny"}, {"--data", "for example"}},
        Usage{"NoOut", {"train", "--data", "a", "--model", "tiny"}, {"--out", "for example"}},
        Usage{"NoModel", {"train", "--data", "a", "--out", "b"}, {"--model", "tiny", "for example"}},
        Usage{"NoCheckpoint", {"sample", "--out", "a.png"}, {"--checkpoint", "for example"}},
        Usage{"UnknownDevice", {"train", "--device", "tpu"}, {"--device 'tpu'", "auto, cpu, cuda, or cuda:N"}},
        Usage{"UnknownCard", {"sample", "--device", "cuda:x"}, {"--device 'cuda:x'", "auto, cpu, cuda, or cuda:N"}},
        Usage{"UnknownDtype", {"train", "--dtype", "f8"}, {"--dtype 'f8'", "bf16, tf32, f32"}},
        Usage{"UnknownPrologue", {"compile", "--prologue", "some"}, {"--prologue 'some'", "auto, always, never"}},
        Usage{"UnknownMode", {"bench", "--mode", "run"}, {"--mode 'run'", "train, sample, forward"}},
        Usage{"UnknownArchitecture",
              {"compile", "--model", "tiny", "--arch", "sm_75"},
              {"--arch 'sm_75'", "sm_80", "sm_90a"}},
        Usage{"CompileNothing", {"compile"}, {"--model or --graph", "for example"}},
        Usage{"CheckNothing", {"check"}, {"--model or --graph", "for example"}},
        Usage{"RunWithoutNumbers", {"run", "--model", "tiny"}, {"--in", "for example"}},
        Usage{"RunToNowhere", {"run", "--model", "tiny", "--in", "a"}, {"--out", "for example"}},
        Usage{"RunNothing", {"run", "--in", "a", "--out", "b"}, {"--model or --graph", "for example"}},
        Usage{"TuneNothing", {"tune"}, {"--model or --graph", "for example"}},
        Usage{"TuneOnTheCpu",
              {"tune", "--model", "tiny", "--device", "cpu"},
              {"difuse tune needs a GPU", "nothing to tune"}},
        Usage{"NoBudget", {"train", "--tune-budget", "0"}, {"--tune-budget '0'", "above 0"}},
        Usage{"BenchNothing", {"bench"}, {"--model or --graph", "for example"}},
        Usage{"GraphAndModel", {"check", "--graph", "a.ir", "--model", "tiny"}, {"--graph", "--model", "leave"}},
        Usage{"NoGraph", {"bench", "--graph", "a.ir"}, {"--graph 'a.ir' cannot be read"}},
        Usage{"InspectNothing", {"inspect"}, {"preset", "for example"}},
        Usage{"InspectUnknown", {"inspect", "mnist-smal"}, {"'mnist-smal'", "did you mean 'mnist-small'?"}}),
    [](const auto& row) { return row.param.name; });

TEST(Usage, AMalformedVariablePrintsItsGrammar) {
  expect_refused(difuse({"doctor"}, {"DIFUSE_TUNE=perhaps"}), 2, {"DIFUSE_TUNE", "perhaps", "off|cached|on|SECONDS"});
}

TEST(Usage, HelpOfEveryCommand) {
  const Outcome all = difuse({"--help"});
  EXPECT_EQ(all.exit_code, 0);
  for (const char* command :
       {"train", "sample", "visualize", "convert", "compile", "run", "tune", "bench", "check", "inspect", "doctor"}) {
    EXPECT_CONTAINS(all.out, command);
    const Outcome help = difuse({command, "--help"});
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_CONTAINS(help.out, std::string("difuse ") + command);
    EXPECT_EQ(help.err, "");
  }
  EXPECT_CONTAINS(difuse({"train", "--help"}).out, "--keep-last");
  EXPECT_CONTAINS(difuse({"train", "--help"}).out, "beta goes from 1e-4 to 0.02");
  EXPECT_EQ(difuse({"--version"}).exit_code, 0);
}

TEST(Usage, DoctorSaysWhatThereIs) {
  const Outcome outcome = difuse({"doctor"}, {"DIFUSE_CACHE=/proc/nowhere"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* part :
       {"cpu", "threads", "oneDNN", "libcuda.so.1", "NVRTC", "/proc/nowhere", "image cache", "DIFUSE_DUMP"}) {
    EXPECT_CONTAINS(outcome.out, part);
  }
}

TEST(Usage, InspectDescribesAPreset) {
  const Outcome outcome = difuse({"inspect", "mnist-small"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* part : {"1,112,801", "GFLOP", "channel_mult", "input_blocks.1.0.in_layers.0.weight"}) {
    EXPECT_CONTAINS(outcome.out, part);
  }
}

TEST(Usage, InspectDescribesData) {
  const TempFolder folder;
  write_idx(folder / "blobs-idx3-ubyte", 12);
  const Outcome outcome = difuse({"inspect", (folder / "blobs-idx3-ubyte").string()});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_CONTAINS(outcome.out, "12 images of 8x8x1");
}

}  // namespace
}  // namespace difuse::test
